/* Vectors of 16 floats, and bfloat16: the upper half of a float. */

#pragma once

#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define LANES 16 /* floats of one vector: 512 bits, or as many registers as make them up */
#define MUCH 16384 /* numbers that are worth a second thread where little is done with each */
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bf16;
typedef float floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(64), aligned(4), may_alias));
typedef bf16 halves __attribute__((vector_size(32), aligned(2), may_alias));

/* Of one register: a compiler keeps wider vectors, of which it makes several, in memory. What a loop or a branch
   hands on is then copied in pieces, for each of which the next load waits: there arrays of these stand. */
#ifdef __AVX512F__
#define REGISTER 16
#elif defined(__AVX__)
#define REGISTER 8
#else
#define REGISTER 4
#endif
#define WHOLE (LANES / REGISTER) /* registers of as many floats */
typedef float vector __attribute__((vector_size(4 * REGISTER), aligned(4), may_alias));
typedef uint32_t vector_bits __attribute__((vector_size(4 * REGISTER), aligned(4), may_alias));
typedef int32_t vector_ints __attribute__((vector_size(4 * REGISTER), aligned(4), may_alias));
typedef bf16 few_halves __attribute__((vector_size(2 * REGISTER), aligned(2), may_alias));

INLINE vector each(float value) { return value - (vector){}; }
INLINE floats all(float value) { return value - (floats){}; }

INLINE float widen_bf16(bf16 value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* To the nearest, ties to even; what is not a number stays so. */
INLINE bf16 narrow_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* Of one register; one instruction, of which compilers make several. */
INLINE vector load_part_bf16(const bf16 *from) {
#if defined(__AVX512F__)
    return (vector)((words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)) << 16);
#elif defined(__AVX2__)
    return (vector)((vector_bits)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)) << 16);
#else
    return (vector)(__builtin_convertvector(*(const few_halves *)from, vector_bits) << 16);
#endif
}

INLINE floats load_bf16(const bf16 *from) {
#ifdef __AVX512F__
    return (floats)load_part_bf16(from);
#else
    return (floats)(__builtin_convertvector(*(const halves *)from, words) << 16);
#endif
}

/* Comparisons of `floats`, all bits of a number set where it holds: by registers, for compilers compare what is
   wider number by number. */
#define COMPARISON(NAME, OPERATOR)                                                                 \
    INLINE words NAME(floats one, floats other) {                                                  \
        vector a[LANES / REGISTER], b[LANES / REGISTER];                                           \
        vector_ints holds[LANES / REGISTER];                                                       \
        memcpy(a, &one, sizeof a), memcpy(b, &other, sizeof b);                                    \
        for (int p = 0; p < LANES / REGISTER; p++) holds[p] = a[p] OPERATOR b[p];                  \
        words made;                                                                                \
        memcpy(&made, holds, sizeof made);                                                         \
        return made;                                                                               \
    }
COMPARISON(are_less, <)
COMPARISON(are_equal, ==)
COMPARISON(are_at_least, >=)

INLINE words narrow_all(floats value) {
    words bits = (words)value, nearest = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    words none = (words)((ints)(0x7f800000u - (bits & 0x7fffffffu)) >> 31); /* what is no number */
    return (none & (bits >> 16 | 0x40u)) | (~none & nearest);
}

INLINE void store_bf16(bf16 *to, floats value) {
    *(halves *)to = __builtin_convertvector(narrow_all(value), halves);
}

/* Rounded, yet in floats. A product that is only that to a compiler is rounded together with what is added. */
INLINE floats rounded_bf16(floats value) { return (floats)(narrow_all(value) << 16); }
INLINE floats rounded_float(floats value) {
    __asm__("" : "+m"(value));
    return value;
}

INLINE vector load_part_float(const float *from) { return *(const vector *)from; }
INLINE float widen_float(float value) { return value; }
INLINE float narrow_float(float value) { return value; }
INLINE floats load_float(const float *from) { return *(const floats *)from; }
INLINE void store_float(float *to, floats value) { *(floats *)to = value; }

#if defined(__has_builtin) && (defined(__AVX512F__) || defined(__clang__)) /* else number by number */
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLES
#endif
#endif

INLINE float total(floats value) {
#ifdef SHUFFLES
#define TURNED(v, by)                                                                              \
    __builtin_shufflevector(v, v, by, by + 1, by + 2, by + 3, by + 4, by + 5, by + 6, by + 7,      \
                            (by + 8) % 16, (by + 9) % 16, (by + 10) % 16, (by + 11) % 16,          \
                            (by + 12) % 16, (by + 13) % 16, (by + 14) % 16, (by + 15) % 16)
    value += TURNED(value, 8);
    value += TURNED(value, 4);
    value += TURNED(value, 2);
    value += TURNED(value, 1);
    return value[0];
#else
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += value[i];
    return sum;
#endif
}

/* Of as many as `floats` has. */
INLINE float total_of(const vector *parts) {
    floats whole;
    memcpy(&whole, parts, sizeof whole);
    return total(whole);
}

/* e^x for x <= 0, to about 1e-7 of the result: 2^(whole + rest), the rest by its series. */
#define EXPONENTIAL(NAME, FLOATS, WORDS, INTS, EACH, LESS)                                         \
    INLINE FLOATS NAME(FLOATS x) {                                                                 \
        WORDS low = (WORDS)(LESS);                                                                 \
        FLOATS power = x * EACH(1.44269504f);                                                      \
        FLOATS whole = (power + EACH(12582912.0f)) - EACH(12582912.0f); /* to the nearest */       \
        FLOATS rest = (x - whole * EACH(0.693359375f)) - whole * EACH(-2.12194440e-4f);            \
        FLOATS sum = EACH(1.0f / 720);                                                             \
        sum = sum * rest + EACH(1.0f / 120);                                                       \
        sum = sum * rest + EACH(1.0f / 24);                                                        \
        sum = sum * rest + EACH(1.0f / 6);                                                         \
        sum = sum * rest + EACH(0.5f);                                                             \
        sum = sum * rest + EACH(1.0f);                                                             \
        sum = sum * rest + EACH(1.0f);                                                             \
        WORDS scale = (WORDS)(__builtin_convertvector(whole, INTS) + 127) << 23;                   \
        return (FLOATS)((WORDS)(sum * (FLOATS)scale) & ~low);                                      \
    }
EXPONENTIAL(exponential, floats, words, ints, all, are_less(x, all(-87.0f)))
EXPONENTIAL(exponential_part, vector, vector_bits, vector_ints, each, x < each(-87.0f))
