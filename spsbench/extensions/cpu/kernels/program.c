/* A pass in one call: its steps one after another, and nothing between them.

   What torch does for each operator, to find it, to look at its inputs, to make room for its result, takes
   longer than a small one itself. steps.py and program.py call it. */

#include <string.h>

#include "activations.h"
#include "numbers.h"
#include "products.h"
#include "program.h"

/* Returns 0, or the error of the step that failed. */
int run_steps(const struct step *steps, long count, const struct pass *pass) {
    int failed = 0;
    for (const struct step *step = steps; step < steps + count && !failed; step++)
        failed = step->run(step, pass);
    return failed;
}

/* A step by itself. `numbers`: of a text and its cache layer, then bases. Returns as `run_steps`. */
int run_step(const struct step *step, const int64_t *numbers, int threads) {
    struct text text;
    struct cache_layer layer;
    memcpy(&text, numbers, sizeof text);
    memcpy(&layer, numbers + sizeof text / sizeof *numbers, sizeof layer);
    char **bases = (char **)numbers + (sizeof text + sizeof layer) / sizeof *numbers;
    struct pass pass = {bases, &text, &layer, 1, threads};
    return step->run(step, &pass);
}

/* args: inputs, panels, biases, results; n: rows, width, outputs of each, hint and ahead, and then for codes
   room, group and what stands for 0. A third product may be missing. */
#define PANELS 1
#define BIASES (PANELS + MANY)
#define RESULTS (BIASES + MANY)
static int jobs_at(const struct step *step, const struct pass *pass, struct job *jobs) {
    int count = 0;
    for (; count < MANY && step->n[2 + count]; count++)
        jobs[count] = (struct job){arg(step, pass, PANELS + count), arg(step, pass, BIASES + count),
                                   arg(step, pass, RESULTS + count), step->n[2 + count]};
    return count;
}

#define PRODUCT(NAME)                                                                              \
    int step_##NAME(const struct step *step, const struct pass *pass) {                            \
        struct job jobs[MANY];                                                                     \
        const int64_t *n = step->n;                                                                \
        return NAME(jobs, jobs_at(step, pass, jobs), arg(step, pass, 0), n[0], n[1],               \
                           (int)n[5], n[6], pass->threads);                                        \
    }
PRODUCT(product_float32)
PRODUCT(product_bfloat16)
PRODUCT(halves_float32)
PRODUCT(tiles_bfloat16)

#define OF_CODES(NAME)                                                                             \
    int step_##NAME(const struct step *step, const struct pass *pass) {                            \
        struct job jobs[MANY];                                                                     \
        const int64_t *n = step->n;                                                                \
        return NAME(jobs, jobs_at(step, pass, jobs), arg(step, pass, 0), n[0], n[1], n[7],         \
                           n[8], (int)n[9], (int)n[5], n[6], pass->threads);                       \
    }
#define EACH_CODE(OF, HOW, KIND)                                                                   \
    OF(HOW##_int8_##KIND) OF(HOW##_int4_##KIND) OF(HOW##_int4_least_##KIND)
EACH_CODE(OF_CODES, product, float32)
EACH_CODE(OF_CODES, product, bfloat16)
EACH_CODE(OF_CODES, dots, bfloat16)

/* args: x, w, y, or x, w, b, y; n: rows, width, and of the former the way; real: eps. */
#define NORMS(KIND)                                                                                \
    void norm_##KIND(const void *, const void *, void *, long, long, float, int, int);             \
    void layer_norm_##KIND(const void *, const void *, const void *, void *, long, long, float, int);\
    int step_norm_##KIND(const struct step *step, const struct pass *pass) {                       \
        norm_##KIND(arg(step, pass, 0), arg(step, pass, 1), arg(step, pass, 2), step->n[0],        \
                    step->n[1], (float)step->real[0], (int)step->n[2], pass->threads);             \
        return 0;                                                                                  \
    }                                                                                              \
    int step_layer_norm_##KIND(const struct step *step, const struct pass *pass) {                 \
        layer_norm_##KIND(arg(step, pass, 0), arg(step, pass, 1), arg(step, pass, 2),              \
                          arg(step, pass, 3), step->n[0], step->n[1], (float)step->real[0],        \
                          pass->threads);                                                          \
        return 0;                                                                                  \
    }
NORMS(float32)
NORMS(bfloat16)

/* args: x, y, and what y is multiplied by, or nothing; n: how many. */
#define ACTIVATION(NAME)                                                                           \
    void NAME(const void *, const void *, void *, long, int);                                      \
    int step_##NAME(const struct step *step, const struct pass *pass) {                            \
        NAME(arg(step, pass, 0), arg(step, pass, 2), arg(step, pass, 1), step->n[0], pass->threads);\
        return 0;                                                                                  \
    }
#define BOTH(NAME) ACTIVATION(NAME##_float32) ACTIVATION(NAME##_bfloat16)
ACTIVATIONS(BOTH)

/* args: x, cosines, sines, y; n: heads, tokens, width, steps of x from a head and a token to the next. */
#define ROTATE(KIND)                                                                               \
    void rotate_##KIND(const void *, const void *, const void *, void *, long, long, long, long, long,\
                       int);                                                                       \
    int step_rotate_##KIND(const struct step *step, const struct pass *pass) {                     \
        const int64_t *n = step->n;                                                                \
        rotate_##KIND(arg(step, pass, 0), arg(step, pass, 1), arg(step, pass, 2), arg(step, pass, 3),\
                      n[0], n[1], n[2], n[3], n[4], pass->threads);                                \
        return 0;                                                                                  \
    }
ROTATE(float32)
ROTATE(bfloat16)

/* Into keys or values. args: their base, rows; n: heads, rows, width, steps of rows from a head and from one
   to the next, bytes of a number, layer, kind of mask. */
void put_rows(char *, const char *, long, long, long, long, long, long, long);
int step_put(const struct step *step, const struct pass *pass) {
    const int64_t *n = step->n;
    long size = n[2] * n[5];
    for (long t = 0; t < pass->count; t++) {
        const struct text *text = pass->texts + n[7] * pass->count + t;
        const struct cache_layer *layer = pass->cache_layers + n[6] * pass->count + t;
        char *to = (char *)(step->args[0].base == KEYS ? layer->keys : layer->values);
        put_rows(to + (text->end - text->rows) * size,
                 (const char *)arg(step, pass, 1) + text->first * n[4] * n[5], n[0], text->rows, size,
                 layer->tokens * size, size, n[3] * n[5], n[4] * n[5]);
    }
    return 0;
}

/* args: query, keys, values, mask, sinks, result; n: heads, those that share keys, tokens, width, steps of the
   query from a head and a token to the next, layer, kind of mask; real: scale, cap. */
#define ATTEND(KIND, NUMBER)                                                                       \
    int attend_##KIND(const struct attended *, long, const void *, long, long, long, long, long,   \
                             float, float, int);                                                   \
    int step_attend_##KIND(const struct step *step, const struct pass *pass) {                     \
        const int64_t *n = step->n;                                                                \
        struct attended each[pass->count];                                                         \
        for (long t = 0; t < pass->count; t++) {                                                   \
            struct text text = pass->texts[n[7] * pass->count + t];                                \
            struct cache_layer layer = pass->cache_layers[n[6] * pass->count + t];                 \
            long from = (text.end - text.seen) * n[3], head = layer.tokens * n[3];                 \
            each[t] = (struct attended){(const NUMBER *)arg(step, pass, 0) + text.first * n[5],    \
                                        (const NUMBER *)layer.keys + from,                         \
                                        (const NUMBER *)layer.values + from, (const void *)text.mask,\
                                        (NUMBER *)arg(step, pass, 5) + text.first * n[0] * n[3],   \
                                        text.rows, text.seen, head, head, text.mask_step};         \
        }                                                                                          \
        return attend_##KIND(each, pass->count, arg(step, pass, 4), n[0], n[1], n[3], n[4], n[5],  \
                                    (float)step->real[0], (float)step->real[1], pass->threads);    \
    }
ATTEND(float32, float)
ATTEND(bfloat16, bf16)
