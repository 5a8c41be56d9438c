/* Inputs in bfloat16 as whole numbers of 8 bits: of each row BLOCK share a scale. */

#pragma once

#include <math.h>

#include "dots.h"

/* What the largest of a block by its bits, without a sign, says: whether all are finite, and the factor. */
INLINE int scale_of(int32_t largest, float *scale, float *factor) {
    float most;
    memcpy(&most, &largest, sizeof most);
    int finite = largest < 0x7f800000;
    *factor = finite && most > 0x1p-120f ? 127 / most : 0; /* its inverse would not be finite */
    *scale = finite ? most / 127 : NAN;
    return finite;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
/* As below, 8 numbers at a time. */
INLINE void round_block(const bf16 *x, int bits, int8_t *codes, float *scale, int32_t *sum) {
    __m256i wide[4], largest = _mm256_setzero_si256(), whole[4], all = _mm256_setzero_si256();
    for (int q = 0; q < 4; q++) {
        __m128i eight = _mm_loadu_si128((const __m128i *)x + q);
        wide[q] = _mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16);
        largest = _mm256_max_epi32(largest, _mm256_and_si256(wide[q], _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i few = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    few = _mm_max_epi32(few, _mm_shuffle_epi32(few, 0x4e));
    few = _mm_max_epi32(few, _mm_shuffle_epi32(few, 0xb1));
    float factor;
    int finite = scale_of(_mm_cvtsi128_si32(few), scale, &factor);
    for (int q = 0; q < 4; q++) {
        __m256 scaled = _mm256_mul_ps(_mm256_castsi256_ps(wide[q]), _mm256_set1_ps(factor));
        whole[q] = finite ? _mm256_cvtps_epi32(scaled) : _mm256_setzero_si256();
        all = _mm256_add_epi32(all, whole[q]);
    }
    few = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    few = _mm_add_epi32(few, _mm_shuffle_epi32(few, 0x4e));
    *sum = _mm_cvtsi128_si32(_mm_add_epi32(few, _mm_shuffle_epi32(few, 0xb1)));
    __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole[0], whole[1]), 0xd8);
    __m256i upper = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole[2], whole[3]), 0xd8);
    if (bits == 8 && WIDENED) {
        _mm256_storeu_si256((__m256i *)codes, low), _mm256_storeu_si256((__m256i *)codes + 1, upper);
        return;
    }
    __m256i narrow = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, upper), 0xd8);
    const __m256i even_first = _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0, 2, 4,
                                                6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    _mm256_storeu_si256((__m256i *)codes, bits == 4 ? _mm256_shuffle_epi8(narrow, even_first) : narrow);
}

#elif defined(DOTS)
/* To the nearest whole numbers, ties to even. */
INLINE ints nearest(floats x) {
#if defined(__AVX512F__)
    return (ints)_mm512_cvtps_epi32((__m512)x);
#else
    ints made;
    for (int part = 0; part < 4; part++) {
        int32x4_t whole = vcvtnq_s32_f32(vld1q_f32((const float *)&x + 4 * part));
        vst1q_s32((int32_t *)&made + 4 * part, whole);
    }
    return made;
#endif
}

INLINE ints larger(ints one, ints other) {
#ifdef __AVX512F__
    return (ints)_mm512_max_epi32((__m512i)one, (__m512i)other);
#else
    ints which = one > other;
    return (which & one) | (~which & other);
#endif
}

INLINE int32_t greatest(ints of) {
#ifdef SHUFFLES
    of = larger(of, TURNED(of, 8));
    of = larger(of, TURNED(of, 4));
    of = larger(of, TURNED(of, 2));
    of = larger(of, TURNED(of, 1));
#else
    for (int i = 1; i < LANES; i++) of[0] = of[i] > of[0] ? of[i] : of[0];
#endif
    return of[0];
}

INLINE bytes narrowed(ints whole) {
#ifdef __AVX512F__
    return (bytes)_mm512_cvtepi32_epi8((__m512i)whole);
#else
    return __builtin_convertvector(whole, bytes);
#endif
}

/* Of each 8 codes the even ones before the odd ones. */
INLINE bytes even_first(bytes codes) {
    const bytes order = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
#ifdef __AVX512F__
    return (bytes)_mm_shuffle_epi8((__m128i)codes, (__m128i)order);
#else
    return (bytes)vqtbl1q_s8((int8x16_t)codes, (uint8x16_t)order);
#endif
}

/* BLOCK inputs; one that is not finite makes its outputs no numbers. */
INLINE void round_block(const bf16 *x, int bits, int8_t *codes, float *scale, int32_t *sum) {
    floats half[2] = {load_bf16(x), load_bf16(x + LANES)};
    ints size[2] = {(ints)half[0] & 0x7fffffff, (ints)half[1] & 0x7fffffff}; /* in the order of their bits */
    float factor;
    int finite = scale_of(greatest(larger(size[0], size[1])), scale, &factor);
    ints whole[2] = {};
    for (int h = 0; h < 2; h++) {
        if (finite) whole[h] = nearest(half[h] * all(factor));
        bytes made = narrowed(whole[h]);
        if (bits == 4) made = even_first(made);
        *(bytes *)(codes + LANES * h) = made;
    }
#ifdef __AVX512F__
    *sum = _mm512_reduce_add_epi32((__m512i)(whole[0] + whole[1]));
#else
    *sum = (int32_t)total(__builtin_convertvector(whole[0] + whole[1], floats)); /* exact */
#endif
}
#endif
