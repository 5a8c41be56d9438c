/* 16 rows of 16 words become columns. */

#pragma once

#include "numbers.h"

#if defined(__AVX2__) && !defined(__AVX512F__)
#define SQUARES 1

/* 8 words of 8 rows become columns. */
INLINE void turn_square(__m256 *row) {
    __m256 pair[8], four[8];
    for (int k = 0; k < 8; k += 2) {
        pair[k] = _mm256_unpacklo_ps(row[k], row[k + 1]);
        pair[k + 1] = _mm256_unpackhi_ps(row[k], row[k + 1]);
    }
    for (int k = 0; k < 8; k += 4)
        for (int h = 0; h < 2; h++) {
            four[k + 2 * h] = _mm256_shuffle_ps(pair[k + h], pair[k + 2 + h], 0x44);
            four[k + 2 * h + 1] = _mm256_shuffle_ps(pair[k + h], pair[k + 2 + h], 0xee);
        }
    for (int k = 0; k < 4; k++) {
        row[k] = _mm256_permute2f128_ps(four[k], four[k + 4], 0x20);
        row[k + 4] = _mm256_permute2f128_ps(four[k], four[k + 4], 0x31);
    }
}
#else
#define SQUARES 0
#endif

#ifdef SHUFFLES
#define TURNS 1 /* by vectors */
#define EACH_WORD(F, s)                                                                            \
    F(s, 0), F(s, 1), F(s, 2), F(s, 3), F(s, 4), F(s, 5), F(s, 6), F(s, 7), F(s, 8), F(s, 9),      \
        F(s, 10), F(s, 11), F(s, 12), F(s, 13), F(s, 14), F(s, 15)
#define UPPER(s, j) ((j) & (s) ? LANES + (j) - (s) : (j))
#define LOWER(s, j) ((j) & (s) ? LANES + (j) : (j) + (s))
/* Exchanges the upper right and the lower left of every square of 2 s words a side. */
#define SWAP(s)                                                                                    \
    _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) if (!(i & s)) {                       \
        words upper = __builtin_shufflevector(row[i], row[i + s], EACH_WORD(UPPER, s));            \
        row[i + s] = __builtin_shufflevector(row[i], row[i + s], EACH_WORD(LOWER, s));             \
        row[i] = upper;                                                                            \
    }

INLINE void turn(words *row) { SWAP(8) SWAP(4) SWAP(2) SWAP(1) }

#elif SQUARES
#define TURNS 1

INLINE void take_square(const words *row, int i, int j, __m256 *to) {
    for (int k = 0; k < 8; k++) to[k] = _mm256_loadu_ps((const float *)(row + i + k) + j);
    turn_square(to);
}

INLINE void put_square(words *row, int i, int j, const __m256 *from) {
    for (int k = 0; k < 8; k++) _mm256_storeu_ps((float *)(row + i + k) + j, from[k]);
}

INLINE void turn(words *row) {
    __m256 square[8], other[8];
    take_square(row, 0, 0, square), put_square(row, 0, 0, square);
    take_square(row, 8, 8, square), put_square(row, 8, 8, square);
    take_square(row, 0, 8, square), take_square(row, 8, 0, other);
    put_square(row, 8, 0, square), put_square(row, 0, 8, other);
}

#else
#define TURNS 0

INLINE void turn(words *row) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) {
            uint32_t one = row[i][j];
            row[i][j] = row[j][i], row[j][i] = one;
        }
}
#endif
