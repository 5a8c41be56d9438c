/* Products of whole numbers, by the instructions that the processor has for them: exact in any order.

   Weights of a block of inputs lie as coded_dots.c says: 4 bytes of each output beside each other are 4 codes
   of 8 bits, or 8 of 4 bits, of which the even ones are the lower halves of bytes. */

#pragma once

#include "coded.h"
#ifdef __ARM_FEATURE_DOTPROD
#include <arm_neon.h>
#endif

#define BLOCK 32 /* inputs of a row that share a scale */

#if defined(__AVX512VNNI__)
#define DOTS 8   /* rows whose sums fit the registers; not defined where there are no such instructions */
#define LIFT 128 /* added to codes of 8 bits: these instructions take the first factor without a sign */
#elif defined(__AVXVNNI__)
#define DOTS 5
#define LIFT 128
#elif defined(__AVX2__) && !defined(__AVX512F__) /* whose vectors are others */
#define DOTS 6
#define WIDENED 1 /* codes of 8 bits are multiplied in 16 */
#elif defined(__ARM_FEATURE_DOTPROD)
#define DOTS 3
#endif
#ifndef LIFT
#define LIFT 0
#endif
#ifndef WIDENED
#define WIDENED 0
#endif
#define CODE (1 + WIDENED) /* bytes for a code of a row */

#ifdef DOTS
/* Parts of a panel whose sums are made at once. */
INLINE int beside(int bits) { return WIDENED && bits == 8 ? 1 : 2; }

#if WIDENED
/* A sum stays in its register: compilers put whole numbers into other orders, for which there are too few. */
#define STAY(SUM) __asm__("" : "+x"(SUM))

/* Where rows begin; not told to the compiler, which would copy all codes to the stack, for all parts. */
INLINE void begin_rows(int rows, const int8_t *x, long step, const int8_t **row) {
    for (int r = 0; r < rows; r++) {
        row[r] = x + r * step;
        __asm__("" : "+r"(row[r]));
    }
}

/* Of one part: 8 outputs, 4 in a register of two sums each. */
INLINE void add_codes_8(int rows, const uint8_t *w, const int8_t *x, long step, vector_ints (*whole)[2]) {
    const int8_t *row[DOTS];
    __m256i low[DOTS], upper[DOTS];
    begin_rows(rows, x, step, row);
    for (int r = 0; r < rows; r++) low[r] = upper[r] = _mm256_setzero_si256();
    _Pragma("GCC unroll 8")
    for (long k = 0; k < BLOCK; k += 4, w += 4 * PANEL) {
        __m256i first = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w));
        __m256i second = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w + 1));
        for (int r = 0; r < rows; r++) {
            int64_t four;
            memcpy(&four, row[r] + CODE * k, sizeof four);
            __m256i factor = _mm256_set1_epi64x(four);
            low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(first, factor));
            upper[r] = _mm256_add_epi32(upper[r], _mm256_madd_epi16(second, factor));
            STAY(low[r]);
            STAY(upper[r]);
        }
    }
    for (int r = 0; r < rows; r++) {
        __m256 one = _mm256_castsi256_ps(low[r]), other = _mm256_castsi256_ps(upper[r]);
        __m256i even = _mm256_castps_si256(_mm256_shuffle_ps(one, other, 0x88));
        __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(one, other, 0xdd));
        whole[r][0] += (vector_ints)_mm256_permute4x64_epi64(_mm256_add_epi32(even, odd), 0xd8);
    }
}

/* Of two parts, in sums of 16 bits: 16 products of 4 bits by 7 and a sign are at most 30,480. */
INLINE void add_codes_4(int rows, const uint8_t *w, const int8_t *x, long step, vector_ints (*whole)[2]) {
    const __m256i lower = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
    const int8_t *row[DOTS];
    __m256i sums[DOTS][2];
    begin_rows(rows, x, step, row);
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    _Pragma("GCC unroll 4")
    for (long k = 0; k < BLOCK; k += 8, w += 4 * PANEL) {
        __m256i both[2] = {_mm256_loadu_si256((const __m256i *)w), _mm256_loadu_si256((const __m256i *)w + 1)};
        for (int odd = 0; odd < 2; odd++) {
            __m256i codes[2];
            for (int p = 0; p < 2; p++)
                codes[p] = _mm256_and_si256(odd ? _mm256_srli_epi16(both[p], 4) : both[p], lower);
            for (int r = 0; r < rows; r++) {
                int32_t four;
                memcpy(&four, row[r] + k + 4 * odd, sizeof four);
                __m256i factor = _mm256_set1_epi32(four);
                for (int p = 0; p < 2; p++) {
                    sums[r][p] = _mm256_add_epi16(sums[r][p], _mm256_maddubs_epi16(codes[p], factor));
                    STAY(sums[r][p]);
                }
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < 2; p++) whole[r][p] += (vector_ints)_mm256_madd_epi16(sums[r][p], one);
}

/* Adds to the sums of `beside` parts the products of a block. `part` counts parts of the panel: each asks for
   its share of the weights. Rows of x are `step` bytes apart. */
INLINE void add_block(int rows, int bits, int unrolled, const uint8_t *w, int part, const int8_t *x, long step,
                      int hint, long ahead, vector_ints (*whole)[2]) {
    (void)unrolled;
    const uint8_t *mine = w + 4 * REGISTER * part, *share = w + BLOCK * PANEL / PARTS * bits / 8 * part;
    for (long at = 0; at < BLOCK * PANEL / PARTS * bits / 8 * beside(bits); at += 128)
        fetch(share + at, hint, ahead);
    if (bits == 8) add_codes_8(rows, mine, x, step, whole);
    else add_codes_4(rows, mine, x, step, whole);
}

#else
/* Adds to each sum the products of 4 codes of an output and 4 of a row, which all outputs share. */
INLINE vector_ints dot(vector_ints sums, vector_ints codes, int32_t row) {
#if defined(__AVX512VNNI__)
    return (vector_ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, _mm512_set1_epi32(row));
#elif defined(__AVXVNNI__)
    return (vector_ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)codes, _mm256_set1_epi32(row));
#else
    int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(row));
    return (vector_ints)vdotq_s32((int32x4_t)sums, (int8x16_t)codes, x);
#endif
}

/* 4 bytes of each output of two parts: inputs from the k-th on, 4 with codes of 8 bits, or 8. */
INLINE void add_bytes(int rows, int bits, const uint8_t *w, const int8_t *x, long step, long k,
                      vector_ints (*whole)[2]) {
    vector_bits low = *(const vector_bits *)w, upper = *(const vector_bits *)(w + 4 * REGISTER);
    for (int odd = 0; odd < (bits == 8 ? 1 : 2); odd++, k += 4) {
        vector_bits flip = (vector_bits){} + LIFT * 0x01010101u;
        vector_ints mine[2] = {(vector_ints)(low ^ flip), (vector_ints)(upper ^ flip)};
        if (bits == 4) {
            mine[0] = (vector_ints)(low >> 4 * odd & 0x0f0f0f0fu);
            mine[1] = (vector_ints)(upper >> 4 * odd & 0x0f0f0f0fu);
        }
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, x + r * step + k, sizeof four);
            whole[r][0] = dot(whole[r][0], mine[0], four);
            whole[r][1] = dot(whole[r][1], mine[1], four);
        }
    }
}

/* Adds to the sums of two parts of a panel the products of a block. Rows of x are `step` bytes apart. */
INLINE void add_block(int rows, int bits, int unrolled, const uint8_t *w, int part, const int8_t *x, long step,
                      int hint, long ahead, vector_ints (*whole)[2]) {
    w += 4 * REGISTER * part;
    if (part) hint = NOT;
    if (unrolled) { /* a sixth faster; others lose by it */
        _Pragma("GCC unroll 4")
        for (long k = 0; k < BLOCK; k += 8, w += 4 * PANEL)
            fetch(w, hint, ahead), add_bytes(rows, bits, w, x, step, k, whole);
    } else {
        for (long k = 0; k < BLOCK; k += bits == 8 ? 4 : 8, w += 4 * PANEL)
            fetch(w, hint, ahead), add_bytes(rows, bits, w, x, step, k, whole);
    }
}
#endif
#endif
