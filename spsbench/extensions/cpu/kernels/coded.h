/* Codes of 8 bits and scales in half precision, as floats. */

#include "reading.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

typedef int8_t bytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t shorts __attribute__((vector_size(32), aligned(2), may_alias));

/* Half precision to float, exactly; scales are finite. */
INLINE floats load_half(const uint8_t *from) {
#ifdef __AVX512F__
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#else
    words bits = __builtin_convertvector(*(const shorts *)from, words);
    floats size = (floats)((bits & 0x7fffu) << 13) * all(0x1p112f);
    return (floats)((words)size | (bits & 0x8000u) << 16);
#endif
}

INLINE floats widen_bytes(const uint8_t *from) {
#ifdef __AVX512F__
    return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif defined(__AVX2__) /* whose compilers do not see it in the line below */
    floats made;
    for (int half = 0; half < 2; half++) {
        __m128i eight = _mm_loadl_epi64((const __m128i *)(from + 8 * half));
        _mm256_storeu_ps((float *)&made + 8 * half, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight)));
    }
    return made;
#else
    return __builtin_convertvector(__builtin_convertvector(*(const bytes *)from, ints), floats);
#endif
}
