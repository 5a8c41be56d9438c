/* What an operator of torch needs of torch, which is its C interface for such operators
   (torch/csrc/stable/c/shim.h), declared here as far as it is used, and of its own arguments. They come in
   words, tensors as handles that it has to give up; its result it leaves in the first. */

#include <stdint.h>
#include <string.h>

typedef struct tensor *tensor;
typedef struct library *library;
typedef uint64_t word;

#ifdef __linux__
#define OF_TORCH __attribute__((weak))
#define MOST 8 /* axes of a tensor */

OF_TORCH int32_t aoti_torch_library_init_def(const char *, const char *, uint32_t, library *);
OF_TORCH int32_t aoti_torch_library_init_impl(const char *, const char *, const char *, uint32_t,
                                              library *);
OF_TORCH int32_t aoti_torch_library_def(library, const char *);
OF_TORCH int32_t aoti_torch_library_impl(library, const char *, void (*)(word *, word, word));
OF_TORCH int32_t aoti_torch_get_data_ptr(tensor, void **);
OF_TORCH int32_t aoti_torch_get_numel(tensor, int64_t *);
OF_TORCH int32_t aoti_torch_get_dim(tensor, int64_t *);
OF_TORCH int32_t aoti_torch_get_sizes(tensor, int64_t **);
OF_TORCH int32_t aoti_torch_get_strides(tensor, int64_t **);
OF_TORCH int32_t aoti_torch_get_dtype(tensor, int32_t *);
OF_TORCH int32_t aoti_torch_is_contiguous(tensor, _Bool *);
OF_TORCH int32_t aoti_torch_empty_strided(int64_t, const int64_t *, const int64_t *, int32_t, int32_t,
                                          int32_t, tensor *);
OF_TORCH int32_t aoti_torch__reinterpret_tensor(tensor, int64_t, const int64_t *, const int64_t *,
                                                int64_t, tensor *);
OF_TORCH int32_t aoti_torch_delete_tensor_object(tensor);
OF_TORCH int32_t aoti_torch_dtype_float32(void);
OF_TORCH int32_t aoti_torch_dtype_bfloat16(void);
OF_TORCH int32_t aoti_torch_dtype_int16(void);
OF_TORCH int32_t torch_get_num_threads(uint32_t *);
OF_TORCH void aoti_torch_check(_Bool, const char *, const char *, uint32_t, const char *);

struct seen { /* of a tensor */
    void *data;
    int64_t *sizes, *strides, axes, numbers;
    int32_t kind;
    _Bool dense;
};

static inline struct seen see(tensor given) {
    struct seen made;
    aoti_torch_get_data_ptr(given, &made.data);
    aoti_torch_get_sizes(given, &made.sizes);
    aoti_torch_get_strides(given, &made.strides);
    aoti_torch_get_dim(given, &made.axes);
    aoti_torch_get_numel(given, &made.numbers);
    aoti_torch_get_dtype(given, &made.kind);
    aoti_torch_is_contiguous(given, &made.dense);
    return made;
}

static inline const void *or_none(struct seen given) { return given.numbers ? given.data : NULL; }

/* Raises: what comes before has to leave nothing behind but handles. */
static inline void expect(int holds, const char *what) {
    if (!holds) aoti_torch_check(0, "spsbench", __FILE__, __LINE__, what);
}

static inline int is_wide(int32_t kind) {
    int wide = kind == aoti_torch_dtype_float32();
    expect(wide || kind == aoti_torch_dtype_bfloat16(), "expected float32 or bfloat16");
    return wide;
}

/* Bfloat16 that stand for floats, whatever else a model has. */
static inline int are_halves(int32_t kind) { return kind == aoti_torch_dtype_int16(); }

static inline int threads(void) {
    uint32_t count = 1;
    torch_get_num_threads(&count);
    return count;
}

/* A tensor on the CPU. */
static inline tensor strided(int64_t axes, const int64_t *sizes, const int64_t *strides, int32_t kind,
                      void **data) {
    tensor made = NULL;
    expect(!aoti_torch_empty_strided(axes, sizes, strides, kind, 0, 0, &made), "no memory");
    aoti_torch_get_data_ptr(made, data);
    return made;
}

/* Its rows one after another. */
static inline tensor empty(int64_t axes, const int64_t *sizes, int32_t kind, void **data) {
    int64_t strides[MOST], step = 1;
    for (int64_t axis = axes; axis--; step *= sizes[axis]) strides[axis] = step;
    return strided(axes, sizes, strides, kind, data);
}

static inline void leave(word *words, int tensors, tensor made) {
    for (int i = 0; i < tensors; i++) aoti_torch_delete_tensor_object((tensor)words[i]);
    words[0] = (word)made;
}

static inline float real(word given) {
    double value;
    memcpy(&value, &given, sizeof value);
    return (float)value;
}
#endif
