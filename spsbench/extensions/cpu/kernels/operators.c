/* The kernels as operators of torch, which call no Python: that would take longer than the kernel of a
   small layer. Where a torch lacks one of the functions of operators.h, `enlist` says so, and
   spsbench/engines/native.py calls the kernels itself. A tensor without numbers stands for none. */

#include "activations.h"
#include "operators.h"
#include "reading.h"

#ifdef __linux__
typedef void operator(word *, word, word);
typedef void normalise(const void *, const void *, void *, long, long, float, int, int);
typedef void centre(const void *, const void *, const void *, void *, long, long, float, int);
typedef void activate(const void *, const void *, void *, long, int);
typedef void turn(const void *, const void *, const void *, void *, long, long, long, long, long, int);
typedef int look(const void *, const void *, const void *, const void *, const void *, void *, long,
                 long, long, long, long, long, long, long, long, long, float, float, int);
operator run_product, run_product_3, run_tiles, run_tiles_3; /* product_operators.c */
operator run_quantised, run_quantised_3, run_quantised_dots, run_quantised_dots_3;
normalise norm_float32, norm_bfloat16;
centre layer_norm_float32, layer_norm_bfloat16;
turn rotate_float32, rotate_bfloat16;
void put_rows(char *, const char *, long, long, long, long, long, long, long);
void rows_of_panels(const void *, const void *, void *, long, long);
void wide_rows_of_panels(const void *, const void *, void *, long, long);
look attend_float32, attend_bfloat16;

static void fits(struct seen x, struct seen weight) {
    expect(x.axes && x.axes <= MOST && x.dense && weight.dense && x.kind == weight.kind &&
               x.sizes[x.axes - 1] == weight.numbers && weight.numbers,
           "inputs of a norm: expected the kind and the width of its weight");
}

static void norm(word *words, word given, word results) {
    (void)given, (void)results;
    struct seen x = see((tensor)words[0]), weight = see((tensor)words[1]);
    fits(x, weight);
    void *data;
    tensor made = empty(x.axes, x.sizes, x.kind, &data);
    (is_wide(x.kind) ? norm_float32 : norm_bfloat16)(x.data, weight.data, data,
                                                     x.numbers / weight.numbers, weight.numbers,
                                                     real(words[2]), (int)words[3], threads());
    leave(words, 2, made);
}

static void layer_norm(word *words, word given, word results) {
    (void)given, (void)results;
    struct seen x = see((tensor)words[0]), weight = see((tensor)words[1]), bias = see((tensor)words[2]);
    fits(x, weight), fits(x, bias);
    void *data;
    tensor made = empty(x.axes, x.sizes, x.kind, &data);
    (is_wide(x.kind) ? layer_norm_float32 : layer_norm_bfloat16)(
        x.data, weight.data, bias.data, data, x.numbers / weight.numbers, weight.numbers, real(words[3]),
        threads());
    leave(words, 3, made);
}

/* Rows of W, which lies in panels, words of 4 bytes of each output side by side. `ids` are 64 bits. */
static void rows(word *words, word given, word results) {
    (void)given, (void)results;
    struct seen ids = see((tensor)words[0]), panels = see((tensor)words[1]);
    expect(ids.dense && panels.dense && panels.axes == 4 && panels.sizes[2] == PANEL,
           "rows: expected ids and panels as they are laid");
    int64_t sizes[] = {ids.numbers, panels.sizes[1] * panels.sizes[3]};
    int halves = are_halves(panels.kind);
    int32_t kind = halves ? aoti_torch_dtype_float32() : panels.kind;
    expect(panels.sizes[3] == (halves || !is_wide(kind) ? 2 : 1), "rows: expected panels of whole words");
    for (long i = 0; i < ids.numbers; i++) {
        int64_t id = ((const int64_t *)ids.data)[i];
        expect(id >= 0 && id < panels.sizes[0] * PANEL, "rows: expected ids of rows");
    }
    void *data;
    tensor made = empty(2, sizes, kind, &data);
    (halves ? wide_rows_of_panels : rows_of_panels)(panels.data, ids.data, data, ids.numbers, panels.sizes[1]);
    leave(words, 2, made);
}

static void activated(word *words, activate *wide, activate *narrow) {
    struct seen x = see((tensor)words[0]);
    expect(x.axes <= MOST && x.dense, "inputs of an activation: expected them one after another");
    void *data;
    tensor made = empty(x.axes, x.sizes, x.kind, &data);
    (is_wide(x.kind) ? wide : narrow)(x.data, NULL, data, x.numbers, threads());
    leave(words, 1, made);
}

#define ACTIVATION(NAME)                                                                           \
    activate NAME##_float32, NAME##_bfloat16;                                                      \
    static void run_##NAME(word *words, word given, word results) {                                \
        (void)given, (void)results;                                                                \
        activated(words, NAME##_float32, NAME##_bfloat16);                                         \
    }
ACTIVATIONS(ACTIVATION)

/* The result lies as what it was made of mostly does: a token's heads one after another. */
static void rotate(word *words, word given, word results) {
    (void)given, (void)results;
    struct seen x = see((tensor)words[0]), cosines = see((tensor)words[1]);
    struct seen sines = see((tensor)words[2]);
    expect(x.axes == 4 && x.sizes[0] == 1 && x.strides[3] == 1,
           "a rotation: expected [1, heads, tokens, width]");
    long heads = x.sizes[1], tokens = x.sizes[2], width = x.sizes[3];
    expect(cosines.dense && sines.dense && cosines.kind == x.kind && sines.kind == x.kind &&
               cosines.numbers == tokens * width && sines.numbers == tokens * width,
           "cosines and sines: expected a number for each token and place");
    int64_t strides[] = {heads * tokens * width, width, heads * width, 1};
    void *data;
    tensor made = strided(4, x.sizes, strides, x.kind, &data);
    (is_wide(x.kind) ? rotate_float32 : rotate_bfloat16)(x.data, cosines.data, sines.data, data, heads,
                                                         tokens, width, x.strides[1], x.strides[2],
                                                         threads());
    leave(words, 3, made);
}

/* Rows of a cache after those before `end`: written, and what is to be seen of them. */
static tensor put_in(word given, word added, int64_t end, int64_t count) {
    struct seen room = see((tensor)given), rows = see((tensor)added);
    expect(room.axes == 4 && rows.axes == 4 && room.sizes[0] == 1 && rows.sizes[0] == 1 &&
               room.kind == rows.kind && room.sizes[1] == rows.sizes[1] &&
               room.sizes[3] == rows.sizes[3] && room.strides[3] == 1 && rows.strides[3] == 1 &&
               rows.sizes[2] <= end && count <= end && end <= room.sizes[2],
           "a cache: expected room for keys and values of its own kind");
    long item = is_wide(room.kind) ? 4 : 2, start = end - rows.sizes[2];
    put_rows((char *)room.data + start * room.strides[2] * item, rows.data, rows.sizes[1], rows.sizes[2],
             rows.sizes[3] * item, room.strides[1] * item, room.strides[2] * item, rows.strides[1] * item,
             rows.strides[2] * item);
    int64_t sizes[] = {1, room.sizes[1], count, room.sizes[3]};
    tensor made = NULL;
    aoti_torch__reinterpret_tensor((tensor)given, 4, sizes, room.strides,
                                   (end - count) * room.strides[2], &made);
    return made;
}

static void put(word *words, word given, word results) {
    (void)given, (void)results;
    struct seen span = see((tensor)words[4]), seen = see((tensor)words[5]);
    tensor keys = put_in(words[0], words[2], span.numbers, seen.numbers);
    tensor values = put_in(words[1], words[3], span.numbers, seen.numbers);
    leave(words, 6, keys);
    words[1] = (word)values;
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

#define ONE "(Tensor x, Tensor panels, Tensor bias, int out, "
#define THREE                                                                                      \
    "(Tensor x, Tensor panels, Tensor panels2, Tensor panels3, Tensor bias, Tensor bias2, Tensor bias3, " \
    "int out, int out2, int out3, "
#define CODES "int width, int room, int group, int bits, bool least, "
#define READ "int hint, int ahead) -> "

static const struct {
    const char *name, *schema;
    operator *run;
} ALL[] = {
    {"product", "product" ONE READ "Tensor", run_product},
    {"product_3", "product_3" THREE READ "(Tensor, Tensor, Tensor)", run_product_3},
    {"tiles", "tiles" ONE READ "Tensor", run_tiles},
    {"tiles_3", "tiles_3" THREE READ "(Tensor, Tensor, Tensor)", run_tiles_3},
    {"quantised", "quantised" ONE CODES READ "Tensor", run_quantised},
    {"quantised_3", "quantised_3" THREE CODES READ "(Tensor, Tensor, Tensor)", run_quantised_3},
    {"quantised_dots", "quantised_dots" ONE CODES READ "Tensor", run_quantised_dots},
    {"quantised_dots_3", "quantised_dots_3" THREE CODES READ "(Tensor, Tensor, Tensor)",
     run_quantised_dots_3},
    {"rows", "rows(Tensor ids, Tensor panels) -> Tensor", rows},
    {"norm", "norm(Tensor x, Tensor weight, float eps, int way) -> Tensor", norm},
    {"layer_norm", "layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor", layer_norm},
#define ROW(NAME) {#NAME, #NAME "(Tensor x) -> Tensor", run_##NAME},
    ACTIVATIONS(ROW)
    {"rotate", "rotate(Tensor x, Tensor cosines, Tensor sines) -> Tensor", rotate},
    {"put",
     "put(Tensor(a!) keys, Tensor(b!) values, Tensor more_keys, Tensor more_values, Tensor span, Tensor seen)"
     " -> (Tensor(a!), Tensor(b!))",
     put},
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
                aoti_torch__reinterpret_tensor && aoti_torch_delete_tensor_object &&
                aoti_torch_dtype_float32 &&
                aoti_torch_dtype_bfloat16 && aoti_torch_dtype_int16 && torch_get_num_threads && aoti_torch_check;
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
