/* What the two sparse forms share: counting set bits, and one block's values in their format. */
#ifndef VDNN_SPARSE_H
#define VDNN_SPARSE_H

#include "kernels.h"

int64_t count_bits(const uint8_t *bits, int64_t nbytes);

/* Bytes of `count` values that stand alone: fp10 fills its last word. */
int64_t values_nbytes(int64_t count, int element_nbytes, enum format format);

/* The elements of one block (n <= BLOCK) whose bit is set, in the format, into exactly the bytes they take. */
void write_values(const uint8_t *source, const uint8_t *bits, int64_t n, int element_nbytes, enum format format,
                  uint8_t *values);

#endif
