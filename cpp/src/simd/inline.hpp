// Inlining of the words that the tile kernels are made of.
#pragma once

#define SEEDDELTA_INLINE inline __attribute__((always_inline))
#define SEEDDELTA_INLINE_LAMBDA __attribute__((always_inline))
