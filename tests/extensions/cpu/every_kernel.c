/* Every kernel over odd sizes beside plain loops in double precision: what test_compilers.py builds with
   other compilers, for other processors, and under sanitizers. All arrays are as long as they must be. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "activations.h"
#include "products.h"
#include "program.h"

#define FIRST 4 /* base of the first tensor of a test */
#define COUNT(list) (long)(sizeof(list) / sizeof *(list))

static uint32_t state = 1;
static double draw(void) { /* in [-1, 1) */
    state = state * 1664525u + 1013904223u;
    return (double)(state >> 8) / (1 << 23) - 1;
}

static double of_float(float x) { return x; }
static double of_bf16(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float made;
    memcpy(&made, &bits, sizeof made);
    return made;
}
static float to_float(double x) { return (float)x; }
static bf16 to_bf16(double x) {
    float near = (float)x;
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    return bits >> 16;
}

static double of_half(uint16_t x) {
    int power = x >> 10 & 31;
    double part = (x & 1023) / 1024.0;
    double size = power ? ldexp(1 + part, power - 15) : ldexp(part, -14);
    return x >> 15 ? -size : size;
}

static double worst_float, worst_bf16;
static void compare(double found, double exact, double size, double *worst) {
    double off = fabs(found - exact) / (size + 1e-30);
    if (!(off <= *worst)) *worst = off; /* what is no number too */
}

/* Codes in panels: a group's, its 32 scales, its 32 minima. `parts`: the size of what is added up, of which
   code and minimum may cancel. */
static double weight(const uint8_t *panels, long size, int bits, int least, int side, long group, long o,
                     long i, double *parts) {
    const uint8_t *w = panels + o / 32 * size + i / group * (group * 4 * bits + 64 * (1 + least));
    const uint8_t *after = w + group * 4 * bits;
    uint16_t ends[2] = {0, 0};
    memcpy(ends, after + 2 * (o % 32), 2);
    if (least) memcpy(ends + 1, after + 64 + 2 * (o % 32), 2);
    long j = i % group;
    uint8_t both = bits == 8 ? 0 : w[j / 8 * 128 + o % 32 * 4 + j % 8 / 2];
    int code = bits == 8 ? (int8_t)w[(j / side * 32 + o % 32) * side + j % side]
                         : (j % 2 ? both >> 4 : both & 15) - (least ? 0 : 8);
    double scaled = code * of_half(ends[0]), minimum = of_half(ends[1]);
    *parts = fabs(scaled) + fabs(minimum);
    return scaled + minimum;
}

static void fill(uint8_t *panels, long size, long count, int bits, int least, long group) {
    long piece = group * 4 * bits, step = piece + 64 * (1 + least);
    for (long at = 0; at < size * count; at++) {
        long inside = at % size % step;
        int upper = inside >= piece && (inside - piece) % 2;
        panels[at] = (uint8_t)(draw() * 127 + 128);
        if (upper) panels[at] = (panels[at] & 0x83) | 0x20; /* of a half: finite, normal or nearly */
    }
}

/* What an integer dot product sees of an input: 8 bits, and the scale of the 32 around it. */
static double rounded(const bf16 *row, long width, long i) {
    double most = 0;
    for (long k = i / 32 * 32; k < width && k < i / 32 * 32 + 32; k++)
        if (fabs(of_bf16(row[k])) > most) most = fabs(of_bf16(row[k]));
    float by = most > 0 ? 127 / (float)most : 0;
    return rintf((float)of_bf16(row[i]) * by) * ((float)most / 127);
}
static double itself_bf16(const bf16 *row, long width, long i) {
    return (void)width, of_bf16(row[i]);
}
static double itself_float(const float *row, long width, long i) { return (void)width, row[i]; }

#define CODED(NAME, KIND, NUMBER, SHORT, BITS, LEAST, SIDE, SEEN)                                  \
    static void try_##NAME##_##KIND(long out, long width, long given_group, long rows) {           \
        long own = given_group ? given_group : 32, room = (width + own - 1) / own * own;           \
        long group = given_group ? given_group : room, count = (out + 31) / 32;                    \
        long size = room * 4 * BITS + room / group * 64 * (1 + LEAST);                             \
        uint8_t *panels = malloc(count * size);                                                    \
        NUMBER *x = malloc(rows * width * sizeof *x), *bias = malloc(out * sizeof *x);             \
        NUMBER *y = malloc(rows * out * sizeof *y), *one = malloc(out * sizeof *y);                \
        fill(panels, size, count, BITS, LEAST, group);                                             \
        for (long i = 0; i < rows * width; i++) x[i] = to_##SHORT(draw());                         \
        for (long i = 0; i < out; i++) bias[i] = to_##SHORT(draw());                               \
        int zero = BITS == 4 ? 8 : 0, hint = (int)(rows % 3);                                      \
        struct job all_rows = {panels, bias, y, out}, row = {panels, bias, one, out};              \
        NAME##_##KIND(&all_rows, 1, x, rows, width, room, group, zero, hint, 2048, 2);             \
        for (long r = 0; r < rows; r++) {                                                          \
            NAME##_##KIND(&row, 1, x + r * width, 1, width, room, group, zero, 0, 0, 1);           \
            for (long o = 0; o < out; o++) {                                                       \
                double sum = of_##SHORT(bias[o]), all = fabs(sum);                                 \
                for (long i = 0; i < width; i++) {                                                 \
                    double parts, seen = SEEN(x + r * width, width, i);                            \
                    sum += weight(panels, size, BITS, LEAST, SIDE, group, o, i, &parts) * seen;    \
                    all += parts * fabs(seen);                                                     \
                }                                                                                  \
                compare(of_##SHORT(y[r * out + o]), sum, all, &worst_##SHORT);                     \
                if (memcmp(y + r * out + o, one + o, sizeof *one)) worst_##SHORT = INFINITY;       \
            }                                                                                      \
        }                                                                                          \
        free(panels), free(x), free(bias), free(y), free(one);                                     \
    }

/* W is of numbers OF. */
#define PRODUCT(NAME, KIND, OF, PACK, NUMBER, SHORT, DEPTH)                                        \
    static void try_##NAME##_##KIND(long out, long width, long rows) {                             \
        width = (width + DEPTH - 1) / DEPTH * DEPTH;                                               \
        long count = (out + 31) / 32;                                                              \
        OF *w = malloc(out * width * sizeof *w), *panels = malloc(count * 32 * width * sizeof *w); \
        NUMBER *bias = malloc(out * sizeof *bias);                                                 \
        NUMBER *x = malloc(rows * width * sizeof *x), *y = malloc(rows * out * sizeof *y);         \
        NUMBER *one = malloc(out * sizeof *y);                                                     \
        for (long i = 0; i < out * width; i++) w[i] = to_##OF(draw());                             \
        for (long i = 0; i < rows * width; i++) x[i] = to_##SHORT(draw());                         \
        for (long i = 0; i < out; i++) bias[i] = to_##SHORT(draw());                               \
        pack_##PACK(w, panels, out, width, width, 1, 2);                                           \
        struct job all_rows = {panels, bias, y, out}, row = {panels, bias, one, out};              \
        NAME##_##KIND(&all_rows, 1, x, rows, width, (int)(rows % 3), 2048, 2);                     \
        for (long r = 0; r < rows; r++) {                                                          \
            NAME##_##KIND(&row, 1, x + r * width, 1, width, 0, 0, 1);                              \
            for (long o = 0; o < out; o++) {                                                       \
                double sum = of_##SHORT(bias[o]), all = fabs(sum);                                 \
                for (long i = 0; i < width; i++) {                                                 \
                    double part = of_##OF(w[o * width + i]) * of_##SHORT(x[r * width + i]);        \
                    sum += part, all += fabs(part);                                                \
                }                                                                                  \
                compare(of_##SHORT(y[r * out + o]), sum, all, &worst_##SHORT);                     \
                if (memcmp(y + r * out + o, one + o, sizeof *one)) worst_##SHORT = INFINITY;       \
            }                                                                                      \
        }                                                                                          \
        free(w), free(bias), free(panels), free(x), free(y), free(one);                            \
    }

#define PLAIN(KIND, NUMBER, SHORT, DEPTH)                                                          \
    void pack_##KIND(const NUMBER *, NUMBER *, long, long, long, long, int);                       \
    PRODUCT(product, KIND, NUMBER, KIND, NUMBER, SHORT, DEPTH)                                     \
    /* `heads` of which each `group` share keys; a tree: every token sees the past, and some of the\
       tokens before it. */                                                                        \
    int attend_##KIND(const struct attended *, long, const void *, long, long, long, long, long,   \
                      float, float, int);                                                          \
    static void try_attend_##KIND(long heads, long group, long tokens, long n, long width) {       \
        long keys = heads / group * n * width, rows = heads * tokens;                              \
        NUMBER *query = malloc(rows * width * sizeof *query), *key = malloc(keys * sizeof *key);   \
        NUMBER *value = malloc(keys * sizeof *key), *mask = malloc(tokens * n * sizeof *mask);     \
        NUMBER *out = malloc(rows * width * sizeof *out);                                          \
        double *weights = malloc(n * sizeof *weights);                                             \
        for (long i = 0; i < rows * width; i++) query[i] = to_##SHORT(draw());                     \
        for (long i = 0; i < keys; i++) key[i] = to_##SHORT(draw()), value[i] = to_##SHORT(draw());\
        for (long t = 0; t < tokens; t++)                                                          \
            for (long i = 0; i < n; i++) {                                                         \
                long own = n - tokens + t;                                                         \
                int seen = i <= n - tokens || i == own || (i < own && draw() > 0);                 \
                mask[t * n + i] = to_##SHORT(seen ? 0 : -1e30);                                    \
            }                                                                                      \
        float scale = 1 / sqrtf((float)width);                                                     \
        struct attended text = {query, key, value, mask, out, tokens, n, n * width, n * width, n}; \
        attend_##KIND(&text, 1, NULL, heads, group, width, tokens * width, width, scale, 0, 2);    \
        for (long h = 0; h < heads; h++)                                                           \
            for (long t = 0; t < tokens; t++) {                                                    \
                const NUMBER *q = query + (h * tokens + t) * width;                                \
                const NUMBER *k = key + h / group * n * width, *v = value + h / group * n * width; \
                double total = 0;                                                                  \
                for (long i = 0; i < n; i++) {                                                     \
                    double score = 0;                                                              \
                    for (long d = 0; d < width; d++)                                               \
                        score += of_##SHORT(q[d]) * of_##SHORT(k[i * width + d]);                  \
                    total += weights[i] = exp(score * scale + of_##SHORT(mask[t * n + i]));        \
                }                                                                                  \
                for (long d = 0; d < width; d++) {                                                 \
                    double mean = 0;                                                               \
                    for (long i = 0; i < n; i++)                                                   \
                        mean += weights[i] / total * of_##SHORT(v[i * width + d]);                 \
                    compare(of_##SHORT(out[(t * heads + h) * width + d]), mean, 1, &worst_##SHORT);\
                }                                                                                  \
            }                                                                                      \
        free(query), free(key), free(value), free(mask), free(out), free(weights);                 \
    }

PLAIN(float32, float, float, 1)
PLAIN(bfloat16, bf16, bf16, 2)
PRODUCT(halves, float32, bf16, bfloat16, float, float, 2)
CODED(product_int8, float32, float, float, 8, 0, 1, itself_float)
CODED(product_int4, float32, float, float, 4, 0, 1, itself_float)
CODED(product_int4_least, float32, float, float, 4, 1, 1, itself_float)
CODED(product_int8, bfloat16, bf16, bf16, 8, 0, 1, itself_bf16)
CODED(product_int4, bfloat16, bf16, bf16, 4, 0, 1, itself_bf16)
CODED(product_int4_least, bfloat16, bf16, bf16, 4, 1, 1, itself_bf16)

/* The same panels by the matrix unit, where there is one; tiles are 32 inputs deep. */
int tiled_bfloat16(void);
PRODUCT(tiles, bfloat16, bf16, bfloat16, bf16, bf16, 32)

/* By integer dot products, where there are any. */
int dots_bfloat16(void);
CODED(dots_int8, bfloat16, bf16, bf16, 8, 0, 4, rounded)
CODED(dots_int4, bfloat16, bf16, bf16, 4, 0, 4, rounded)
CODED(dots_int4_least, bfloat16, bf16, bf16, 4, 1, 4, rounded)

/* Norms of rows, each as it is alone. */
#define NORM(KIND, NUMBER, SHORT)                                                                  \
    void norm_##KIND(const NUMBER *, const NUMBER *, NUMBER *, long, long, float, int, int);       \
    static void try_norm_##KIND(long rows, long width) {                                           \
        int way = (int)(rows % 3); /* early, late, plus one */                                     \
        NUMBER *x = malloc(rows * width * sizeof *x), *w = malloc(width * sizeof *w);              \
        NUMBER *y = malloc(rows * width * sizeof *y);                                              \
        for (long i = 0; i < rows * width; i++) x[i] = to_##SHORT(draw());                         \
        for (long i = 0; i < width; i++) w[i] = to_##SHORT(draw());                                \
        norm_##KIND(x, w, y, rows, width, 0.01f, way, 2);                                          \
        for (long r = 0; r < rows; r++) {                                                          \
            double squares = 0;                                                                    \
            for (long i = 0; i < width; i++) squares += pow(of_##SHORT(x[r * width + i]), 2);      \
            for (long i = 0; i < width; i++) {                                                     \
                double exact = (way / 2 + of_##SHORT(w[i])) * of_##SHORT(x[r * width + i]);        \
                exact /= sqrt(squares / width + 0.01f);                                            \
                compare(of_##SHORT(y[r * width + i]), exact, fabs(exact), &worst_##SHORT);         \
            }                                                                                      \
        }                                                                                          \
        free(x), free(w), free(y);                                                                 \
    }

NORM(float32, float, float)
NORM(bfloat16, bf16, bf16)

#define LAYER_NORM(KIND, NUMBER, SHORT)                                                            \
    void layer_norm_##KIND(const NUMBER *, const NUMBER *, const NUMBER *, NUMBER *, long, long,   \
                           float, int);                                                            \
    static void try_layer_norm_##KIND(long rows, long width) {                                     \
        NUMBER *x = malloc(rows * width * sizeof *x), *y = malloc(rows * width * sizeof *y);       \
        NUMBER *w = malloc(width * sizeof *w), *b = malloc(width * sizeof *b);                     \
        for (long i = 0; i < rows * width; i++) x[i] = to_##SHORT(draw() + 0.5);                   \
        for (long i = 0; i < width; i++) w[i] = to_##SHORT(draw()), b[i] = to_##SHORT(draw());     \
        layer_norm_##KIND(x, w, b, y, rows, width, 0.01f, 2);                                      \
        for (long r = 0; r < rows; r++) {                                                          \
            double mean = 0, squares = 0;                                                          \
            for (long i = 0; i < width; i++) mean += of_##SHORT(x[r * width + i]) / width;         \
            for (long i = 0; i < width; i++) squares += pow(of_##SHORT(x[r * width + i]) - mean, 2);\
            for (long i = 0; i < width; i++) {                                                     \
                double even = (of_##SHORT(x[r * width + i]) - mean) / sqrt(squares / width + 0.01f);\
                double part = of_##SHORT(w[i]) * even, rest = of_##SHORT(b[i]);                    \
                compare(of_##SHORT(y[r * width + i]), part + rest, fabs(part) + fabs(rest) + 1,    \
                        &worst_##SHORT);                                                           \
            }                                                                                      \
        }                                                                                          \
        free(x), free(w), free(b), free(y);                                                        \
    }

LAYER_NORM(float32, float, float)
LAYER_NORM(bfloat16, bf16, bf16)

static double silu(double x) { return x / (1 + exp(-x)); }
static double gelu_tanh(double x) {
    return x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))) / 2;
}
static double gelu(double x) { return x * erfc(-x / sqrt(2)) / 2; }
static double relu(double x) { return x > 0 ? x : 0; }

#define ACTIVATION(NAME, KIND, NUMBER, SHORT)                                                      \
    void NAME##_##KIND(const NUMBER *, const NUMBER *, NUMBER *, long, int);                       \
    static void try_##NAME##_##KIND(long count) {                                                  \
        NUMBER *x = calloc(count, sizeof *x), *y = malloc(count * sizeof *y);                      \
        NUMBER *by = malloc(count * sizeof *by), *z = malloc(count * sizeof *z);                   \
        for (long i = 0; i < count; i++) x[i] = to_##SHORT(draw() * 20), by[i] = to_##SHORT(draw());\
        NAME##_##KIND(x, NULL, y, count, 2);                                                       \
        NAME##_##KIND(x, by, z, count, 2);                                                         \
        for (long i = 0; i < count; i++) {                                                         \
            double exact = NAME(of_##SHORT(x[i])), product = of_##SHORT(y[i]) * of_##SHORT(by[i]); \
            compare(of_##SHORT(y[i]), exact, fabs(exact) + 0.1, &worst_##SHORT);                   \
            compare(of_##SHORT(z[i]), product, fabs(product) + 0.1, &worst_##SHORT);               \
        }                                                                                          \
        free(x), free(y), free(by), free(z);                                                       \
    }
#define OF_BOTH(NAME) ACTIVATION(NAME, float32, float, float) ACTIVATION(NAME, bfloat16, bf16, bf16)
ACTIVATIONS(OF_BOTH)

/* A program, x + W norm(x), beside a call of each kernel: the same bits. Then keys and values are written
   where they belong, and read from there. */
#define PROGRAM(KIND, NUMBER, SHORT)                                                               \
    int step_norm_##KIND(const struct step *, const struct pass *);                                \
    int step_product_##KIND(const struct step *, const struct pass *);                             \
    int step_add_##KIND(const struct step *, const struct pass *);                                 \
    int step_put(const struct step *, const struct pass *);                                        \
    int step_attend_##KIND(const struct step *, const struct pass *);                              \
    static void try_program_##KIND(long rows, long width) {                                        \
        long size = rows * width, panels = (width + 31) / 32 * 32 * width;                         \
        NUMBER *x = malloc(size * sizeof *x), *made = malloc(size * sizeof *x);                    \
        NUMBER *even = malloc(2 * size * sizeof *x), *w = malloc(width * sizeof *x);               \
        NUMBER *dense = malloc(width * width * sizeof *x), *laid = malloc(panels * sizeof *x);     \
        NUMBER *own = malloc(2 * size * sizeof *x);                                                \
        for (long i = 0; i < size; i++) x[i] = to_##SHORT(draw());                                 \
        for (long i = 0; i < width; i++) w[i] = to_##SHORT(draw());                                \
        for (long i = 0; i < width * width; i++) dense[i] = to_##SHORT(draw());                    \
        pack_##KIND(dense, laid, width, width, width, 1, 1);                                       \
        struct step steps[] = {                                                                    \
            {step_norm_##KIND, {{FIRST, 0}, {FIRST + 1, 0}, {1, 0}}, {rows, width, 1}, {0.01}},    \
            {step_product_##KIND, {{1, 0}, {FIRST + 2, 0}, {0}, {0}, {0}, {0}, {0}, {1, size * sizeof *x}},\
             {rows, width, width}, {0}},                                                           \
            {step_add_##KIND, {{1, size * sizeof *x}, {FIRST, 0}, {FIRST + 3, 0}},                 \
             {1, 1, rows, width, 0, 0, width, 1, 0, 0, width, 1, 0, 0, width, 1}, {0}},            \
        };                                                                                         \
        char *bases[] = {0, (char *)even, 0, 0, (char *)x, (char *)w, (char *)laid, (char *)made}; \
        struct pass pass = {bases, 0, 0, 0, 2};                                                    \
        if (run_steps(steps, 3, &pass)) worst_##SHORT = INFINITY;                                  \
        norm_##KIND(x, w, own, rows, width, 0.01f, 1, 1);                                          \
        struct job job = {laid, NULL, own + size, width};                                          \
        product_##KIND(&job, 1, own, rows, width, 0, 0, 1);                                        \
        for (long i = 0; i < size; i++) {                                                          \
            double sum = of_##SHORT(own[size + i]) + of_##SHORT(x[i]);                             \
            compare(of_##SHORT(made[i]), sum, fabs(sum), &worst_##SHORT);                          \
        }                                                                                          \
        free(x), free(made), free(even), free(w), free(dense), free(laid), free(own);              \
    }                                                                                              \
    /* `rows` new tokens of 2 heads after `past`, of which `seen` are read, in room for more. */   \
    static void try_cache_##KIND(long rows, long past, long seen, long width) {                    \
        long end = past + rows, room = end + 3, size = 2 * rows * width;                           \
        NUMBER *states = malloc(3 * size * sizeof *states), *made = malloc(2 * size * sizeof *made);\
        NUMBER *keys = malloc(2 * room * width * sizeof *keys);                                    \
        NUMBER *values = malloc(2 * room * width * sizeof *keys);                                  \
        NUMBER *mask = malloc(rows * (seen + 5) * sizeof *mask);                                   \
        for (long i = 0; i < 3 * size; i++) states[i] = to_##SHORT(draw());                        \
        for (long i = 0; i < 2 * room * width; i++) keys[i] = to_##SHORT(draw());                  \
        for (long i = 0; i < 2 * room * width; i++) values[i] = to_##SHORT(draw());                \
        for (long i = 0; i < rows * (seen + 5); i++) mask[i] = to_##SHORT(draw());                 \
        struct step steps[] = {                                                                    \
            {step_put, {{KEYS, 0}, {FIRST, size * sizeof *made}},                                  \
             {2, rows, width, width, 2 * width, sizeof *made}, {0}},                               \
            {step_put, {{KEYS + 1, 0}, {FIRST, 2 * size * sizeof *made}},                          \
             {2, rows, width, width, 2 * width, sizeof *made}, {0}},                               \
            {step_attend_##KIND, {{FIRST, 0}, {KEYS, 0}, {KEYS + 1, 0}, {0}, {0}, {FIRST + 1, 0}}, \
             {2, 1, rows, width, width, 2 * width}, {0.5}},                                        \
        };                                                                                         \
        char *bases[] = {0, 0, 0, 0, (char *)states, (char *)made};                                \
        struct cache_layer layers[1] = {{(int64_t)keys, (int64_t)values, room}};                   \
        struct text text = {0, rows, end, seen, (int64_t)mask, seen + 5};                          \
        struct pass pass = {bases, &text, layers, 1, 2};                                           \
        if (run_steps(steps, 3, &pass)) worst_##SHORT = INFINITY;                                  \
        for (long head = 0; head < 2; head++)                                                      \
            for (long row = 0; row < rows; row++) {                                                \
                long to = (head * room + past + row) * width, from = (row * 2 + head) * width;     \
                if (memcmp(keys + to, states + size + from, width * sizeof *keys) ||               \
                    memcmp(values + to, states + 2 * size + from, width * sizeof *keys))           \
                    worst_##SHORT = INFINITY;                                                      \
            }                                                                                      \
        long first = (end - seen) * width;                                                         \
        struct attended alone = {states, keys + first, values + first, mask, made + size, rows, seen,\
                                 room * width, room * width, seen + 5};                            \
        attend_##KIND(&alone, 1, NULL, 2, 1, width, width, 2 * width, 0.5f, 0, 1);                 \
        if (memcmp(made, made + size, size * sizeof *made)) worst_##SHORT = INFINITY;              \
        free(states), free(made), free(keys), free(values), free(mask);                            \
    }

PROGRAM(float32, float, float)
PROGRAM(bfloat16, bf16, bf16)

/* Heads lie as a product leaves them: those of a token one after another. */
#define ROTATE(KIND, SHORT, NUMBER)                                                                \
    void rotate_##KIND(const NUMBER *, const NUMBER *, const NUMBER *, NUMBER *, long, long, long, long,\
                       long, int);                                                                 \
    static void try_rotate_##SHORT(long heads, long tokens, long width) {                          \
        long count = heads * tokens * width, half = width / 2;                                     \
        NUMBER *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y);                     \
        NUMBER *c = malloc(tokens * width * sizeof *c), *s = malloc(tokens * width * sizeof *s);   \
        for (long i = 0; i < count; i++) x[i] = to_##SHORT(draw());                                \
        for (long i = 0; i < tokens * width; i++) c[i] = to_##SHORT(draw()), s[i] = to_##SHORT(draw());\
        rotate_##KIND(x, c, s, y, heads, tokens, width, width, heads * width, 2);                  \
        for (long row = 0; row < heads * tokens; row++)                                            \
            for (long i = 0; i < width; i++) {                                                     \
                long other = row * width + (i + half) % width, place = row / heads * width + i;    \
                double own = of_##SHORT(x[row * width + i]) * of_##SHORT(c[place]);                \
                double rest = of_##SHORT(x[other]) * of_##SHORT(s[place]) * (i < half ? -1 : 1);   \
                compare(of_##SHORT(y[row * width + i]), own + rest, fabs(own) + fabs(rest), &worst_##SHORT);\
            }                                                                                      \
        free(x), free(y), free(c), free(s);                                                        \
    }
ROTATE(float32, float, float)
ROTATE(bfloat16, bf16, bf16)

/* Whether `u` falls on token `id` of those that a warp keeps, which are few or of little mass before it. */
static int falls_on(const double *weights, long tokens, const struct warp *warp, double top_p, long id, double u) {
    double *kept = malloc(tokens * sizeof *kept), all = 0, sum = 0, below = 0;
    for (long i = 0; i < tokens; i++) {
        long likelier = 0;
        for (long j = 0; j < tokens; j++) likelier += weights[j] > weights[i];
        kept[i] = warp->top_k && likelier >= warp->top_k ? 0 : weights[i];
        all += kept[i];
    }
    for (long i = 0; i < tokens; i++) {
        double likelier = 0;
        for (long j = 0; j < tokens; j++)
            likelier += kept[j] > kept[i] || (kept[j] == kept[i] && j < i) ? kept[j] : 0;
        int stays = (top_p >= 1 || likelier < top_p * all) && weights[i] >= warp->min_p;
        sum += stays ? kept[i] : 0, below += stays && i < id ? kept[i] : 0;
        if (i == id && !stays) sum = INFINITY;
    }
    int falls = u * sum >= below - 1e-5 * sum && u * sum <= below + kept[id] + 1e-5 * sum;
    free(kept);
    return falls;
}

/* Whether draws from three rows of logits, without a pass between them, fall elsewhere than they should. */
#define DRAWS(KIND, NUMBER, NARROW)                                                                \
    static int wrong_draws_##KIND(long tokens, struct warp warp) {                                 \
        NUMBER *logits = malloc(3 * tokens * sizeof *logits);                                      \
        int64_t ids[3];                                                                            \
        double u[3], *weights = malloc(tokens * sizeof *weights);                                  \
        for (long i = 0; i < 3 * tokens; i++) logits[i] = to_##NUMBER(30 * draw());                \
        for (int i = 0; i < 3; i++) u[i] = (draw() + 1) / 2;                                       \
        int64_t *names = malloc(tokens * sizeof *names);                                           \
        for (long i = 0; i < tokens; i++) names[i] = 5 + 2 * i;                                    \
        struct draws draws = {ids, u, (char *)logits, (char *)(logits + tokens), names, 3, tokens, \
                              tokens * (long)sizeof *logits, NARROW, warp};                        \
        struct step none[1] = {0};                                                                 \
        struct pass pass = {0};                                                                    \
        int wrong = roll_out(none, 0, &pass, 0, NULL, 0, &draws);                                  \
        void laws_##KIND(const NUMBER *, float *, long, long, long, const struct warp *, int);     \
        float *laws = malloc(3 * tokens * sizeof *laws);                                           \
        laws_##KIND(logits, laws, 3, tokens, tokens, &warp, 2);                                    \
        free(names);                                                                               \
        for (int i = 0; i < 3; i++) {                                                              \
            ids[i] = ids[i] % 2 ? (ids[i] - 5) / 2 : -1;                                           \
            const NUMBER *row = logits + i * tokens;                                               \
            double peak = -HUGE_VAL;                                                               \
            for (long j = 0; j < tokens; j++)                                                      \
                peak = of_##NUMBER(row[j]) > peak ? of_##NUMBER(row[j]) : peak;                    \
            if (ids[i] < 0 || ids[i] >= tokens) {                                                  \
                wrong = 1;                                                                         \
            } else if (warp.temperature == 0) {                                                    \
                wrong |= of_##NUMBER(row[ids[i]]) != peak;                                         \
                for (long j = 0; j < ids[i]; j++) wrong |= of_##NUMBER(row[j]) == peak;            \
                for (long j = 0; j < tokens; j++) wrong |= laws[i * tokens + j] != (j == ids[i]);  \
            } else {                                                                               \
                for (long j = 0; j < tokens; j++)                                                  \
                    weights[j] = exp((of_##NUMBER(row[j]) - peak) / warp.temperature);             \
                double whole = 0;                                                                  \
                for (long j = 0; j < tokens; j++) whole += laws[i * tokens + j];                   \
                wrong |= !(fabs(whole - 1) < 1e-5) || !(laws[i * tokens + ids[i]] > 0);            \
                wrong |= !falls_on(weights, tokens, &warp, warp.top_p - 1e-5, ids[i], u[i]) &&     \
                         !falls_on(weights, tokens, &warp, warp.top_p + 1e-5, ids[i], u[i]);       \
            }                                                                                      \
        }                                                                                          \
        free(logits), free(weights), free(laws);                                                   \
        return wrong;                                                                              \
    }
DRAWS(float32, float, 0)
DRAWS(bfloat16, bf16, 1)

#define BOTH(NAME, ...) NAME##_float32(__VA_ARGS__), NAME##_bfloat16(__VA_ARGS__)

int main(int given, char **words) {
    int few = given > 1 && !strcmp(words[1], "few"); /* a third of the sizes: emulation is slow */
    long outs[] = {1, 31, 32, 33, 70}, widths[] = {1, 6, 31, 32, 50, 100, 160};
    long rows[] = {1, 2, 3, 5, 8, 11, 103}, groups[] = {0, 32, 64};
    for (long a = 0; a < COUNT(outs); a++)
        for (long b = 0; b < COUNT(widths); b++)
            for (long c = 0; c < COUNT(rows); c++) {
                if (few && (a + b + c) % 3) continue;
                BOTH(try_product, outs[a], widths[b], rows[c]);
                try_halves_float32(outs[a], widths[b], rows[c]);
                for (long d = 0; d < COUNT(groups); d++) {
                    BOTH(try_product_int8, outs[a], widths[b], groups[d], rows[c]);
                    BOTH(try_product_int4, outs[a], widths[b], groups[d], rows[c]);
                    BOTH(try_product_int4_least, outs[a], widths[b], groups[d], rows[c]);
                    if (!dots_bfloat16()) continue;
                    try_dots_int8_bfloat16(outs[a], widths[b], groups[d], rows[c]);
                    try_dots_int4_bfloat16(outs[a], widths[b], groups[d], rows[c]);
                    try_dots_int4_least_bfloat16(outs[a], widths[b], groups[d], rows[c]);
                }
            }
    for (long a = 0; tiled_bfloat16() && a < COUNT(outs); a++)
        for (long tiles = 1; tiles < 4; tiles++)
            for (long many = 1; many <= 36; many += few ? 7 : 3)
                try_tiles_bfloat16(outs[a], 32 * tiles, many);
    for (long b = 0; b < COUNT(widths); b++)
        for (long c = 0; c < COUNT(rows); c++) {
            BOTH(try_norm, rows[c], widths[b]);
            BOTH(try_layer_norm, rows[c], widths[b]);
#define TRY(NAME) BOTH(try_##NAME, rows[c] * widths[b]);
            ACTIVATIONS(TRY)
            BOTH(try_program, rows[c], widths[b] + widths[b] % 2);
            BOTH(try_cache, rows[c], 2 + b, rows[c] + (b ? 2 : 0), 16 * (1 + b % 3));
        }
    long vocabs[] = {1, 15, 16, 17, 100, 300};
    struct warp warps[] = {{0, 1, 0, 0},   {0.3, 1, 0, 0},  {1, 1, 0, 0},    {5, 1, 0, 0},      {5, 0.8, 0, 0},
                           {5, 1, 0.1, 0}, {20, 1, 0, 3},   {20, 0.9, 0, 0}, {20, 0.5, 0.2, 9}, {1, 0.95, 0, 0}};
    for (long a = 0; a < COUNT(vocabs); a++)
        for (long b = 0; b < COUNT(warps); b++)
            for (int i = 0; i < 20; i++)
                if (wrong_draws_float32(vocabs[a], warps[b]) ||
                    wrong_draws_bfloat16(vocabs[a], warps[b])) {
                    printf("a draw of %ld tokens at temperature %g\n", vocabs[a], warps[b].temperature);
                    return 3;
                }
    try_rotate_bf16(1, 1, 2), try_rotate_bf16(3, 4, 30), try_rotate_bf16(2, 5, 64);
    try_rotate_float(1, 1, 2), try_rotate_float(3, 4, 30), try_rotate_float(2, 5, 64);
    long heads[][2] = {{1, 1}, {6, 3}, {4, 1}}, tokens[] = {1, 2, 5, 33, 129}, wide[] = {16, 80, 128};
    for (long a = 0; a < COUNT(heads); a++)
        for (long b = 0; b < COUNT(tokens); b++)
            for (long c = 0; c < COUNT(wide); c++) {
                if (tokens[b] > 100 && (a == 2 || c == 2 || few)) continue; /* slow, nothing new */
                BOTH(try_attend, heads[a][0], heads[a][1], tokens[b], tokens[b] + 1 + 7 * c, wide[c]);
                if (tokens[b] < 10) BOTH(try_attend, heads[a][0], heads[a][1], tokens[b], 601, wide[c]);
            }
    printf("worst: float32 %.1e, bfloat16 %.1e\n", worst_float, worst_bf16);
    return worst_float < 2e-6 && worst_bf16 < 8e-3 ? 0 : 1;
}
