/* What the two sparse forms share: values in their format, and handing offsets from tile to tile. */
#ifndef VDNN_SPARSE_H
#define VDNN_SPARSE_H

#include "kernels.h"

/* Blocks that are encoded together: 512 KiB of float32, which stay in a core's cache between measuring and packing. */
enum { TILE = 32 };

/* Note: [One pass] in sparse.c. Whose turn it is to learn where its values begin, and where that is. */
struct turn {
    int64_t tile, offset;
};

/* Waits for this tile's turn and returns its offset; the next tile's is `size` further. */
int64_t take_turn(struct turn *turn, int64_t tile, int64_t size);

/* Bytes of `count` values that stand alone: fp10 fills its last word. */
int64_t values_nbytes(int64_t count, int element_nbytes, enum format format);

/* The elements of one block (n <= BLOCK) whose bit is set, in the format, into exactly the bytes they take. */
void write_values(const uint8_t *source, const uint8_t *bits, int64_t n, int element_nbytes, enum format format,
                  uint8_t *values);

#endif
