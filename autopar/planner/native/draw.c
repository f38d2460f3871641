/* Matsumoto and Nishimura, "Mersenne Twister", ACM Transactions on Modeling and Computer Simulation 8(1), 1998. */

#include "core.h"

static uint32_t twisted(uint32_t high, uint32_t low, uint32_t other)
{
    uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return other ^ (y >> 1) ^ (-(y & 1) & 0x9908b0dfu);
}

void twist(Draw *draw)
{
    uint32_t *mt = draw->word;
    int k = 0;
    for (; k < WORDS - 397; k++)
        mt[k] = twisted(mt[k], mt[k + 1], mt[k + 397]);
    for (; k < WORDS - 1; k++)
        mt[k] = twisted(mt[k], mt[k + 1], mt[k + 397 - WORDS]);
    mt[k] = twisted(mt[k], mt[0], mt[396]);
    draw->next = 0;
}
