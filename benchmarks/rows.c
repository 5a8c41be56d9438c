/* What the processor does at most with the instructions of the kernels: benchmarks/rows.py compiles this file
   with their flags, beside their headers. Each loop returns its operations, two for a product. */

#include "reading.h"
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#define CHAINS 10 /* sums beside each other: two a cycle, each four cycles long, and some to spare */
#ifdef __aarch64__
#define HIDE(value) __asm__ volatile("" : "+w"(value)) /* from the compiler, which would multiply once */
#else
#define HIDE(value) __asm__ volatile("" : "+x"(value))
#endif

const char *instructions(void) {
#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
    return "AVX-512 with BF16 and VNNI";
#elif defined(__AVX512VNNI__)
    return "AVX-512 with VNNI";
#elif defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVXVNNI__)
    return "AVX2 with AVX-VNNI";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__ARM_FEATURE_DOTPROD)
    return "NEON with dot products";
#elif defined(__aarch64__)
    return "NEON";
#else
    return "SSE2";
#endif
}

/* PRODUCTS of one STEP; a kernel without such instructions has 0. */
#define PEAK(NAME, TYPE, PRODUCTS, STEP)                                                           \
    long peak_##NAME(long turns, int threads) {                                                    \
        _Pragma("omp parallel num_threads(threads)") {                                             \
            TYPE sums[CHAINS] = {}, w = {}, x = {};                                                \
            for (long i = 0; i < turns; i++)                                                       \
                for (int c = 0; c < CHAINS; c++) {                                                 \
                    HIDE(w);                                                                       \
                    HIDE(x);                                                                       \
                    sums[c] = STEP;                                                                \
                    HIDE(sums[c]);                                                                 \
                }                                                                                  \
        }                                                                                          \
        return 2L * PRODUCTS * CHAINS * turns * threads;                                           \
    }

PEAK(float32, vector, REGISTER, sums[c] * w + x)

#if defined(__AVX512BF16__)
PEAK(bfloat16, __m512, 32, _mm512_dpbf16_ps(sums[c], (__m512bh)w, (__m512bh)x))
#else
PEAK(bfloat16, vector, REGISTER, sums[c] * w + x)
#endif

#if defined(__AVX512VNNI__)
PEAK(int8, __m512i, 64, _mm512_dpbusd_epi32(sums[c], w, x))
PEAK(int4, __m512i, 64, _mm512_dpbusd_epi32(sums[c], w, x))
#elif defined(__AVXVNNI__)
PEAK(int8, __m256i, 32, _mm256_dpbusd_avx_epi32(sums[c], w, x))
PEAK(int4, __m256i, 32, _mm256_dpbusd_avx_epi32(sums[c], w, x))
#elif defined(__AVX2__) /* codes of 8 bits are too long for sums of 16 */
PEAK(int8, __m256i, 16, _mm256_add_epi32(sums[c], _mm256_madd_epi16(w, x)))
PEAK(int4, __m256i, 32, _mm256_add_epi16(sums[c], _mm256_maddubs_epi16(w, x)))
#elif defined(__ARM_FEATURE_DOTPROD)
PEAK(int8, int32x4_t, 16, vdotq_s32(sums[c], (int8x16_t)w, (int8x16_t)x))
PEAK(int4, int32x4_t, 16, vdotq_s32(sums[c], (int8x16_t)w, (int8x16_t)x))
#else
PEAK(int8, vector, REGISTER, sums[c] * w + x)
PEAK(int4, vector, REGISTER, sums[c] * w + x)
#endif

/* Reads `bytes`, a multiple of 4 KiB, as kernels do. */
void read_bytes(const char *from, long bytes, int hint, long ahead, int threads) {
    _Pragma("omp parallel for schedule(static) num_threads(threads)")
    for (long page = 0; page < bytes; page += 4096) {
        vector_bits sums[4] = {};
        for (long at = page; at < page + 4096; at += 128) {
            fetch(from + at, hint, ahead);
            for (long part = 0; part < 128; part += 4 * REGISTER)
                sums[part / (4 * REGISTER) % 4] |= *(const vector_bits *)(from + at + part);
        }
        for (int i = 0; i < 4; i++) HIDE(sums[i]);
    }
}
