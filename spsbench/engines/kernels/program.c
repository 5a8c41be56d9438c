/* A pass through layers in one call: their operations one after another, and nothing between them.

   What torch does for each operation, to find it, to look at its inputs, to make room for its result, takes
   longer than a small one itself. spsbench/engines/programs.py calls it. */

#include "activations.h"
#include "numbers.h"
#include "products.h"
#include "program.h"

/* `bases` of each layer, `each` of them one after another, and its room. Whether memory was missing. */
int run_layers(const struct step *steps, long count, char *const *bases, const int64_t *rooms, long each,
               long layers, int64_t end, int64_t seen, int64_t mask_step, int threads) {
    for (long layer = 0; layer < layers; layer++) {
        struct pass pass = {bases + layer * each, 0, 0, 0, end, seen, rooms[layer], mask_step, threads};
        for (long i = 0; i < count; i++)
            if (steps[i].run(steps + i, &pass)) return 1;
    }
    return 0;
}

/* The same for several texts, whose rows stand one after another: each has keys and values of its own. */
int run_texts(const struct step *steps, long count, char *const *bases, const struct room *rooms, long each,
              long layers, const struct text *texts, long texts_count, int threads) {
    for (long layer = 0; layer < layers; layer++) {
        struct pass pass = {bases + layer * each, texts, rooms + layer * texts_count, texts_count,
                            0, 0, 0, 0, threads};
        for (long i = 0; i < count; i++)
            if (steps[i].run(steps + i, &pass)) return 1;
    }
    return 0;
}

/* at: inputs, panels, biases, results; n: rows, width, outputs of each, hint and ahead, and then for codes
   room, group and what stands for 0. A third product may be missing. */
#define PANELS 1
#define BIASES (PANELS + MANY)
#define RESULTS (BIASES + MANY)
static int jobs_at(const struct step *step, const struct pass *pass, struct job *jobs) {
    int count = 0;
    for (; count < MANY && step->n[2 + count]; count++)
        jobs[count] = (struct job){at(step, pass, PANELS + count), at(step, pass, BIASES + count),
                                   at(step, pass, RESULTS + count), step->n[2 + count]};
    return count;
}

#define PRODUCT(NAME)                                                                              \
    int step_##NAME(const struct step *step, const struct pass *pass) {                            \
        struct job jobs[MANY];                                                                     \
        const int64_t *n = step->n;                                                                \
        return NAME##_each(jobs, jobs_at(step, pass, jobs), at(step, pass, 0), n[0], n[1],         \
                           (int)n[5], n[6], pass->threads);                                        \
    }
PRODUCT(product_float32)
PRODUCT(product_bfloat16)
PRODUCT(tiles_bfloat16)

#define OF_CODES(NAME)                                                                             \
    int step_##NAME(const struct step *step, const struct pass *pass) {                            \
        struct job jobs[MANY];                                                                     \
        const int64_t *n = step->n;                                                                \
        return NAME##_each(jobs, jobs_at(step, pass, jobs), at(step, pass, 0), n[0], n[1], n[7],   \
                           n[8], (int)n[9], (int)n[5], n[6], pass->threads);                       \
    }
#define EACH_CODE(OF, HOW, KIND)                                                                   \
    OF(HOW##_int8_##KIND) OF(HOW##_int4_##KIND) OF(HOW##_int4_least_##KIND)
EACH_CODE(OF_CODES, product, float32)
EACH_CODE(OF_CODES, product, bfloat16)
EACH_CODE(OF_CODES, tiles, bfloat16)
EACH_CODE(OF_CODES, dots, bfloat16)

/* at: x, w, y, or x, w, b, y; n: rows, width, and of the former the way; real: eps. */
#define NORMS(KIND)                                                                                \
    void norm_##KIND(const void *, const void *, void *, long, long, float, int, int);             \
    void layer_norm_##KIND(const void *, const void *, const void *, void *, long, long, float, int);\
    int step_norm_##KIND(const struct step *step, const struct pass *pass) {                       \
        norm_##KIND(at(step, pass, 0), at(step, pass, 1), at(step, pass, 2), step->n[0],           \
                    step->n[1], (float)step->real[0], (int)step->n[2], pass->threads);             \
        return 0;                                                                                  \
    }                                                                                              \
    int step_layer_norm_##KIND(const struct step *step, const struct pass *pass) {                 \
        layer_norm_##KIND(at(step, pass, 0), at(step, pass, 1), at(step, pass, 2),                 \
                          at(step, pass, 3), step->n[0], step->n[1], (float)step->real[0],         \
                          pass->threads);                                                          \
        return 0;                                                                                  \
    }
NORMS(float32)
NORMS(bfloat16)

/* at: x, y; n: how many. */
#define ACTIVATION(NAME)                                                                           \
    void NAME(const void *, void *, long, int);                                                    \
    int step_##NAME(const struct step *step, const struct pass *pass) {                            \
        NAME(at(step, pass, 0), at(step, pass, 1), step->n[0], pass->threads);                     \
        return 0;                                                                                  \
    }
#define BOTH(NAME) ACTIVATION(NAME##_float32) ACTIVATION(NAME##_bfloat16)
ACTIVATIONS(BOTH)

/* at: x, cosines, sines, y; n: heads, tokens, width, steps of x from a head and a token to the next. */
void rotate_bfloat16(const void *, const void *, const void *, void *, long, long, long, long, long);
int step_rotate_bfloat16(const struct step *step, const struct pass *pass) {
    const int64_t *n = step->n;
    rotate_bfloat16(at(step, pass, 0), at(step, pass, 1), at(step, pass, 2), at(step, pass, 3), n[0], n[1],
                    n[2], n[3], n[4]);
    return 0;
}

/* Into keys or values. at: their base, rows; n: heads, rows, width, steps of rows from a head and from one
   to the next, bytes of a number. */
void put_rows(char *, const char *, long, long, long, long, long, long, long);
int step_put(const struct step *step, const struct pass *pass) {
    const int64_t *n = step->n;
    long size = n[2] * n[5];
    for (long t = 0; pass->texts && t < pass->count; t++) {
        const struct text *text = pass->texts + t;
        const struct room *room = pass->rooms + t;
        char *to = (char *)(step->at[0].base == KEYS ? room->keys : room->values);
        put_rows(to + (text->end - text->rows) * size,
                 (const char *)at(step, pass, 1) + text->first * n[4] * n[5], n[0], text->rows, size,
                 room->tokens * size, size, n[3] * n[5], n[4] * n[5]);
    }
    if (pass->texts) return 0;
    put_rows((char *)at(step, pass, 0) + (pass->end - n[1]) * size, at(step, pass, 1), n[0], n[1], size,
             pass->room * size, size, n[3] * n[5], n[4] * n[5]);
    return 0;
}

/* at: query, keys, values, mask, sinks, result; n: heads, those that share keys, tokens, width, steps of the
   query from a head and a token to the next; real: scale, cap. */
#define ATTEND(KIND, NUMBER)                                                                       \
    int attend_##KIND##_each(const struct attended *, long, const void *, long, long, long, long, long,\
                             float, float, int);                                                   \
    int step_attend_##KIND(const struct step *step, const struct pass *pass) {                     \
        const int64_t *n = step->n;                                                                \
        long count = pass->texts ? pass->count : 1;                                                \
        struct attended each[count];                                                               \
        struct text own = {0, n[2], pass->end, pass->seen, (int64_t)at(step, pass, 3), pass->mask_step};\
        struct room whole = {(int64_t)at(step, pass, 1), (int64_t)at(step, pass, 2), pass->room, 0};\
        for (long t = 0; t < count; t++) {                                                         \
            struct text text = pass->texts ? pass->texts[t] : own;                                 \
            struct room room = pass->texts ? pass->rooms[t] : whole;                               \
            long from = (text.end - text.seen) * n[3], head = room.tokens * n[3];                  \
            each[t] = (struct attended){(const NUMBER *)at(step, pass, 0) + text.first * n[5],     \
                                        (const NUMBER *)room.keys + from,                          \
                                        (const NUMBER *)room.values + from, (const void *)text.mask,\
                                        (NUMBER *)at(step, pass, 5) + text.first * n[0] * n[3],    \
                                        (const struct coded *)room.past,                           \
                                        text.rows, text.seen, head, head, text.mask_step};         \
        }                                                                                          \
        return attend_##KIND##_each(each, count, at(step, pass, 4), n[0], n[1], n[3], n[4], n[5],  \
                                    (float)step->real[0], (float)step->real[1], pass->threads);    \
    }
ATTEND(float32, float)
ATTEND(bfloat16, bf16)
