/* Packing the elements whose bit is set, and spreading them again, in plain C. */
#include "kernels.h"

#include <string.h>

/* Every element is written and the position advances only past those that stay: no branch to mispredict. */
#define COMPACT(name, type)                                                                                            \
    static int64_t name(const type *source, const uint8_t *bits, int64_t n, type *target) {                            \
        int64_t count = 0;                                                                                             \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            target[count] = source[i];                                                                                 \
            count += bit_at(bits, i);                                                                                  \
        }                                                                                                              \
        return count;                                                                                                  \
    }

COMPACT(compact4, uint32_t)
COMPACT(compact2, uint16_t)

#define SCATTER(name, type)                                                                                            \
    static void name(const type *values, const type *values_end, const uint8_t *bits, int64_t n, type *target) {       \
        (void)values_end; /* reads exactly as many values as bits are set */                                           \
        for (int64_t i = 0; i < n; i++) target[i] = bit_at(bits, i) ? *values++ : 0;                                   \
    }

SCATTER(scatter4, uint32_t)
SCATTER(scatter2, uint16_t)

/* Eight places at a time, in the bytes of one integer; a row's positions fit a byte, so adding the byte's own position
 * to all eight never carries. Past the set bits there is rubbish, which the next eight overwrite: hence the slack. */
static int64_t columns(const uint8_t *bits, int64_t n, uint8_t *target) {
    int64_t count = 0;
    for (int64_t byte = 0; byte < ceil_div(n, 8); byte++) {
        uint64_t base = (uint64_t)(8 * byte % ROW) * 0x0101010101010101;
        uint64_t places = PLACES[bits[byte]] + base;
        memcpy(target + count, &places, sizeof places);
        count += __builtin_popcount(bits[byte]);
    }
    return count;
}

void enter_compaction_generic(struct inner *table) {
    table->compact4 = compact4;
    table->compact2 = compact2;
    table->scatter4 = scatter4;
    table->scatter2 = scatter2;
    table->columns = columns;
}
