/* Products as operators of torch: of one layer, and of up to three over the same inputs. */

#include "operators.h"
#include "products.h"

#ifdef __linux__
/* The inputs of up to MANY products, their panels, biases and numbers of outputs, in this order; a third
   product may be missing. A panel is `size` numbers of one kind. Makes the results; how many products there
   are. */
static int jobs_of(word *words, int count, long size, struct job *jobs, tensor *made) {
    int32_t kind = see((tensor)words[1]).kind;
    struct seen x = see((tensor)words[0]);
    int64_t sizes[MOST], whole[MANY], none = 0;
    memcpy(sizes, x.sizes, x.axes * sizeof *sizes);
    for (int i = 0; i < count; i++) {
        struct seen panels = see((tensor)words[1 + i]), bias = see((tensor)words[1 + count + i]);
        int64_t out = whole[i] = panels.numbers ? (int64_t)words[1 + 2 * count + i] : 0;
        expect(panels.dense && out >= 0 && out <= panels.sizes[0] * PANEL &&
                   panels.numbers == panels.sizes[0] * size && (panels.kind == kind || !panels.numbers),
               "inputs: expected the kind and the width of the panels");
        expect(!bias.numbers || (bias.kind == x.kind && bias.dense && bias.numbers == out),
               "bias: expected the kind and the number of the outputs");
        jobs[i] = (struct job){panels.data, or_none(bias), NULL, out};
    }
    for (int i = 0; i < count; i++) {
        sizes[x.axes - 1] = whole[i];
        made[i] = whole[i] ? empty(x.axes, sizes, x.kind, &jobs[i].y) : empty(1, &none, x.kind, &jobs[i].y);
    }
    return whole[count - 1] ? count : count - 1;
}

static void finish(word *words, int count, tensor *made) {
    leave(words, 1 + 2 * count, made[0]);
    for (int i = 1; i < count; i++) words[i] = (word)made[i];
}

#define FAILED "no memory for the inputs of a product, or no instructions for it"

/* Floats also over panels of halves, where `wide` is not missing. */
static void multiplied(word *words, int count, multiply *wide, multiply *narrow) {
    struct seen x = see((tensor)words[0]), panels = see((tensor)words[1]);
    struct job jobs[MANY];
    tensor made[MANY];
    expect(x.axes && x.axes <= MOST && x.dense, "inputs: expected rows one after another");
    multiply *kernel = is_wide(x.kind) ? wide : narrow;
    expect(kernel != NULL, "expected bfloat16");
    if (panels.kind != x.kind) {
        expect(is_wide(x.kind) && are_halves(panels.kind), "inputs: expected the kind of the panels");
        kernel = halves_float32_each;
    }
    long in = x.sizes[x.axes - 1];
    const word *how = words + 1 + 3 * count;
    int there = jobs_of(words, count, in * PANEL, jobs, made);
    expect(!x.numbers || !kernel(jobs, there, x.data, x.numbers / in, in, (int)how[0], (long)how[1], threads()),
           FAILED);
    finish(words, count, made);
}

/* `wide` and `narrow` are the kernels for codes of 8 bits, of 4, and of 4 with minima. */
static void multiplied_codes(word *words, int count, multiply_codes *const *wide,
                             multiply_codes *const *narrow) {
    struct seen x = see((tensor)words[0]);
    struct job jobs[MANY];
    tensor made[MANY];
    const word *how = words + 1 + 3 * count;
    int64_t width = how[0], room = how[1], group = how[2];
    int bits = (int)how[3], least = how[4] & 1;
    expect(x.axes && x.axes <= MOST && x.dense, "inputs: expected rows one after another");
    expect(bits == 8 ? !least : bits == 4, "codes: expected 8 bits, or 4");
    expect(x.sizes[x.axes - 1] == width && group > 0 && width <= room,
           "inputs: expected the kind and the width of the panels");
    multiply_codes *const *kernels = is_wide(x.kind) ? wide : narrow;
    expect(kernels != NULL, "expected bfloat16");
    long size = room * PANEL * bits / 8 + room / group * 2 * PANEL * (1 + least);
    int there = jobs_of(words, count, size, jobs, made);
    expect(!x.numbers || !kernels[bits == 8 ? 0 : 1 + least](
                             jobs, there, x.data, x.numbers / width, width, room, group,
                             bits == 8 ? 0 : 8, (int)how[5], (long)how[6], threads()),
           FAILED);
    finish(words, count, made);
}

static multiply_codes *const WIDE[] = {product_int8_float32_each, product_int4_float32_each,
                                       product_int4_least_float32_each};
static multiply_codes *const NARROW[] = {product_int8_bfloat16_each, product_int4_bfloat16_each,
                                         product_int4_least_bfloat16_each};
static multiply_codes *const DOTS[] = {dots_int8_bfloat16_each, dots_int4_bfloat16_each,
                                       dots_int4_least_bfloat16_each};

#define OPERATOR(NAME, BY, COUNT, ...)                                                             \
    void run_##NAME(word *words, word given, word results) {                                       \
        (void)given, (void)results;                                                                \
        BY(words, COUNT, __VA_ARGS__);                                                             \
    }
OPERATOR(product, multiplied, 1, product_float32_each, product_bfloat16_each)
OPERATOR(product_3, multiplied, MANY, product_float32_each, product_bfloat16_each)
OPERATOR(tiles, multiplied, 1, NULL, tiles_bfloat16_each)
OPERATOR(tiles_3, multiplied, MANY, NULL, tiles_bfloat16_each)
OPERATOR(quantised, multiplied_codes, 1, WIDE, NARROW)
OPERATOR(quantised_3, multiplied_codes, MANY, WIDE, NARROW)
OPERATOR(quantised_dots, multiplied_codes, 1, NULL, DOTS)
OPERATOR(quantised_dots_3, multiplied_codes, MANY, NULL, DOTS)
#endif
