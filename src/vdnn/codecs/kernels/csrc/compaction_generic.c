/* Packing the elements whose bit is set, and spreading them again, in plain C. */
#include "bit_loops.h"
#include "kernels.h"

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

static int64_t count_bits(const uint8_t *bits, int64_t nbytes) { return count_bits_loop(bits, nbytes); }
static int64_t columns(const uint8_t *bits, int64_t n, uint8_t *target) { return columns_loop(bits, n, target); }

void enter_compaction_generic(struct inner *table) {
    table->compact4 = compact4;
    table->compact2 = compact2;
    table->scatter4 = scatter4;
    table->scatter2 = scatter2;
    table->count_bits = count_bits;
    table->columns = columns;
}
