/* What multiplies by weights that are laid out: up to MANY products of the same inputs at once. */

#pragma once

#include "reading.h"

#define MANY 3

/* Products, how many; inputs, rows, numbers of a row; a hint and how far ahead; threads. For codes also
   how many inputs there is room for, those of a group, and what stands for 0. Whether that went wrong. */
typedef int multiply(const struct job *, int, const void *, long, long, int, long, int);
typedef int multiply_codes(const struct job *, int, const void *, long, long, long, long, int, int, long,
                           int);

multiply product_float32, product_bfloat16, halves_float32, tiles_bfloat16;
multiply_codes product_int8_float32, product_int4_float32, product_int4_least_float32;
multiply_codes product_int8_bfloat16, product_int4_bfloat16, product_int4_least_bfloat16;
multiply_codes dots_int8_bfloat16, dots_int4_bfloat16, dots_int4_least_bfloat16;
