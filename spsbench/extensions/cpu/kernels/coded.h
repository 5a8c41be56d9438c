/* Codes of 8 bits and scales in half precision, as floats. */

#include "reading.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

typedef int8_t bytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef int8_t few_bytes __attribute__((vector_size(REGISTER), aligned(1), may_alias));
typedef uint16_t few_shorts __attribute__((vector_size(2 * REGISTER), aligned(2), may_alias));

/* Half precision to floats of one register, exactly; scales are finite. */
INLINE vector load_half(const uint8_t *from) {
#ifdef __AVX512F__
    return (vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__F16C__)
    return (vector)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    vector_bits bits = __builtin_convertvector(*(const few_shorts *)from, vector_bits);
    vector size = (vector)((bits & 0x7fffu) << 13) * each(0x1p112f);
    return (vector)((vector_bits)size | (bits & 0x8000u) << 16);
#endif
}

/* Codes of one register of outputs. */
INLINE vector widen_part(const uint8_t *from) {
#ifdef __AVX512F__
    return (vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif defined(__AVX2__) /* whose compilers do not see it in the line below */
    return (vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
    return __builtin_convertvector(__builtin_convertvector(*(const few_bytes *)from, vector_ints), vector);
#endif
}
