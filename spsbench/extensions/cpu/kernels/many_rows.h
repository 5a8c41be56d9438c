/* Products of many rows: jobs, how many; inputs, rows, numbers of a row; threads. Whether there was no memory. */

#pragma once

#include "reading.h"

#define MANY_ROWS 24 /* from so many on an unpacked panel pays */

int many_float32(const struct job *, int, const float *, long, long, int);
int many_halves(const struct job *, int, const float *, long, long, int); /* W in bfloat16 */
int many_bfloat16(const struct job *, int, const bf16 *, long, long, int);
