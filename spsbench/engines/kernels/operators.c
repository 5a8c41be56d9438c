/* The kernels as operators of torch, which call no Python: that would take longer than the kernel of a
   small layer. Where a torch lacks one of the functions of operators.h, `enlist` says so, and
   spsbench/engines/native.py calls the kernels itself. A tensor without numbers stands for none. */

#include "operators.h"

#ifdef __linux__
typedef int multiply(const void *, const void *, const void *, void *, long, long, long, int, long, int);
typedef int multiply_codes(const uint8_t *, const void *, const void *, void *, long, long, long, long, long,
                           int, int, long, int);
typedef void normalise(const void *, const void *, void *, long, long, float, int);
typedef void turn(const void *, const void *, const void *, void *, long, long, long, long, long);
typedef int look(const void *, const void *, const void *, const void *, const void *, void *, long,
                 long, long, long, long, long, long, long, long, long, float, float, int);
multiply product_float32, product_bfloat16, tiles_bfloat16;
multiply_codes product_int8_float32, product_int4_float32, product_int4_least_float32;
multiply_codes product_int8_bfloat16, product_int4_bfloat16, product_int4_least_bfloat16;
multiply_codes tiles_int8_bfloat16, tiles_int4_bfloat16, tiles_int4_least_bfloat16;
normalise norm_float32, norm_bfloat16;
turn rotate_bfloat16;
look attend_float32, attend_bfloat16;

static void multiplied(word *words, multiply *wide, multiply *narrow) {
    struct seen x = see((tensor)words[0]), panels = see((tensor)words[1]), bias = see((tensor)words[2]);
    int64_t out = words[3], sizes[MOST];
    expect(x.axes && x.axes <= MOST && x.dense, "inputs: expected rows one after another");
    long in = x.sizes[x.axes - 1];
    expect(x.kind == panels.kind && panels.axes == 4 && in == panels.sizes[1] * panels.sizes[3] &&
               out <= panels.sizes[0] * panels.sizes[2],
           "inputs: expected the kind and the width of the panels");
    expect(!bias.numbers || (bias.kind == x.kind && bias.dense && bias.numbers == out),
           "bias: expected the kind and the number of the outputs");
    memcpy(sizes, x.sizes, x.axes * sizeof *sizes);
    sizes[x.axes - 1] = out;
    multiply *kernel = is_wide(x.kind) ? wide : narrow;
    expect(kernel != NULL, "expected bfloat16");
    void *data;
    tensor made = empty(x.axes, sizes, x.kind, &data);
    expect(!x.numbers || !kernel(panels.data, x.data, or_none(bias), data, x.numbers / in, in, out,
                                 (int)words[4], (long)words[5], threads()),
           "no memory for the inputs of a product, or no matrix unit");
    leave(words, 3, made);
}

static void product(word *words, word given, word results) {
    (void)given, (void)results;
    multiplied(words, product_float32, product_bfloat16);
}

static void tiles(word *words, word given, word results) {
    (void)given, (void)results;
    multiplied(words, NULL, tiles_bfloat16);
}

/* The kernel for codes of 8 bits, of 4, and of 4 with minima. */
static void multiplied_codes(word *words, multiply_codes *const *wide, multiply_codes *const *narrow) {
    struct seen x = see((tensor)words[0]), panels = see((tensor)words[1]), bias = see((tensor)words[2]);
    int64_t out = words[3], width = words[4], room = words[5], group = words[6], sizes[MOST];
    int bits = (int)words[7], least = !!(words[8] & 1);
    expect(x.axes && x.axes <= MOST && x.dense, "inputs: expected rows one after another");
    expect(bits == 8 ? !least : bits == 4, "codes: expected 8 bits, or 4");
    expect(x.sizes[x.axes - 1] == width && group > 0 && width <= room && panels.axes == 2 && panels.dense &&
               panels.sizes[1] == room * 4 * bits + room / group * 64 * (1 + least) &&
               out <= panels.sizes[0] * 32,
           "inputs: expected the width of the panels");
    expect(!bias.numbers || (bias.kind == x.kind && bias.dense && bias.numbers == out),
           "bias: expected the kind and the number of the outputs");
    memcpy(sizes, x.sizes, x.axes * sizeof *sizes);
    sizes[x.axes - 1] = out;
    multiply_codes *const *kernels = is_wide(x.kind) ? wide : narrow;
    expect(kernels != NULL, "expected bfloat16");
    void *data;
    tensor made = empty(x.axes, sizes, x.kind, &data);
    expect(!x.numbers || !kernels[bits == 8 ? 0 : 1 + least](
                             panels.data, x.data, or_none(bias), data, x.numbers / width, width, room, out,
                             group, bits == 8 ? 0 : 8, (int)words[9], (long)words[10], threads()),
           "no memory for the inputs of a product, or no matrix unit");
    leave(words, 3, made);
}

static void quantised(word *words, word given, word results) {
    static multiply_codes *const wide[] = {product_int8_float32, product_int4_float32,
                                           product_int4_least_float32};
    static multiply_codes *const narrow[] = {product_int8_bfloat16, product_int4_bfloat16,
                                             product_int4_least_bfloat16};
    (void)given, (void)results;
    multiplied_codes(words, wide, narrow);
}

static void quantised_tiles(word *words, word given, word results) {
    static multiply_codes *const narrow[] = {tiles_int8_bfloat16, tiles_int4_bfloat16,
                                             tiles_int4_least_bfloat16};
    (void)given, (void)results;
    multiplied_codes(words, NULL, narrow);
}

static void norm(word *words, word given, word results) {
    (void)given, (void)results;
    struct seen x = see((tensor)words[0]), weight = see((tensor)words[1]);
    expect(x.axes && x.axes <= MOST && x.dense && weight.dense && x.kind == weight.kind &&
               x.sizes[x.axes - 1] == weight.numbers && weight.numbers,
           "inputs of a norm: expected the kind and the width of its weight");
    void *data;
    tensor made = empty(x.axes, x.sizes, x.kind, &data);
    (is_wide(x.kind) ? norm_float32 : norm_bfloat16)(x.data, weight.data, data,
                                                     x.numbers / weight.numbers, weight.numbers,
                                                     real(words[2]), threads());
    leave(words, 2, made);
}

/* The result lies as what it was made of mostly does: a token's heads one after another. */
static void rotate(word *words, word given, word results) {
    (void)given, (void)results;
    struct seen x = see((tensor)words[0]), cosines = see((tensor)words[1]);
    struct seen sines = see((tensor)words[2]);
    expect(x.axes == 4 && x.sizes[0] == 1 && x.strides[3] == 1 && !is_wide(x.kind),
           "a rotation: expected bfloat16 [1, heads, tokens, width]");
    long heads = x.sizes[1], tokens = x.sizes[2], width = x.sizes[3];
    expect(cosines.dense && sines.dense && cosines.kind == x.kind && sines.kind == x.kind &&
               cosines.numbers == tokens * width && sines.numbers == tokens * width,
           "cosines and sines: expected a number for each token and place");
    int64_t strides[] = {heads * tokens * width, width, heads * width, 1};
    void *data;
    tensor made = strided(4, x.sizes, strides, x.kind, &data);
    rotate_bfloat16(x.data, cosines.data, sines.data, data, heads, tokens, width, x.strides[1],
                    x.strides[2]);
    leave(words, 3, made);
}

static void attend(word *words, word given, word results) {
    (void)given, (void)results;
    struct seen query = see((tensor)words[0]), key = see((tensor)words[1]);
    struct seen value = see((tensor)words[2]), mask = see((tensor)words[3]);
    struct seen sinks = see((tensor)words[4]);
    int64_t heads = query.sizes[1], tokens = query.sizes[2], width = query.sizes[3], n = key.sizes[2];
    int64_t sizes[] = {1, tokens, heads, width};
    expect(!mask.numbers || (mask.axes == 4 && mask.sizes[2] == tokens && mask.sizes[3] == n &&
                             mask.kind == query.kind),
           "mask: expected a number for each token and key");
    void *data;
    tensor made = empty(4, sizes, query.kind, &data);
    expect(!(is_wide(query.kind) ? attend_float32 : attend_bfloat16)(
               query.data, key.data, value.data, or_none(mask), or_none(sinks), data, heads,
               heads / key.sizes[1], tokens, n, width, query.strides[1], query.strides[2],
               key.strides[1], value.strides[1], mask.numbers ? mask.strides[2] : 0, real(words[5]),
               real(words[6]), threads()),
           "no memory for the scores of attention");
    leave(words, 5, made);
}

#define OVER_CODES                                                                                 \
    "Tensor x, Tensor panels, Tensor bias, int out, int width, int room, int group, int bits, bool least," \
    " int hint, int ahead) -> Tensor"

static const struct {
    const char *name, *schema;
    void (*run)(word *, word, word);
} ALL[] = {
    {"product",
     "product(Tensor x, Tensor panels, Tensor bias, int out, int hint, int ahead) -> Tensor", product},
    {"tiles", "tiles(Tensor x, Tensor panels, Tensor bias, int out, int hint, int ahead) -> Tensor",
     tiles},
    {"quantised", "quantised(" OVER_CODES, quantised},
    {"quantised_tiles", "quantised_tiles(" OVER_CODES, quantised_tiles},
    {"norm", "norm(Tensor x, Tensor weight, float eps) -> Tensor", norm},
    {"rotate", "rotate(Tensor x, Tensor cosines, Tensor sines) -> Tensor", rotate},
    {"attend",
     "attend(Tensor query, Tensor key, Tensor value, Tensor mask, Tensor sinks, float scale, float cap)"
     " -> Tensor",
     attend},
};

/* Makes the operators known under a name of their own; whether that went wrong. */
int enlist(const char *space) {
    library names, runs;
    int there = aoti_torch_library_init_def && aoti_torch_library_init_impl && aoti_torch_library_def &&
                aoti_torch_library_impl && aoti_torch_get_data_ptr && aoti_torch_get_numel &&
                aoti_torch_get_dim && aoti_torch_get_sizes && aoti_torch_get_strides &&
                aoti_torch_get_dtype && aoti_torch_is_contiguous && aoti_torch_empty_strided &&
                aoti_torch_delete_tensor_object && aoti_torch_dtype_float32 &&
                aoti_torch_dtype_bfloat16 && torch_get_num_threads && aoti_torch_check;
    if (!there || aoti_torch_library_init_def(space, __FILE__, __LINE__, &names) ||
        aoti_torch_library_init_impl(space, "CPU", __FILE__, __LINE__, &runs))
        return 1;
    for (unsigned i = 0; i < sizeof ALL / sizeof *ALL; i++)
        if (aoti_torch_library_def(names, ALL[i].schema) ||
            aoti_torch_library_impl(runs, ALL[i].name, ALL[i].run))
            return 1;
    return 0;
}
#else
int enlist(const char *space) { return (void)space, 1; }
#endif
