// The structures that the caller fills in; engine/native/structures.py mirrors them field by field.
#pragma once

#include <cstdint>

#include "matrix.h"

namespace rumormill {

struct Layer {
    const float *input_norm, *mlp_norm, *query_norm, *key_norm;  // the last two may be null
    Matrix qkv, output, gate_up, down;
    int32_t window, unused;
};

struct Model {
    int32_t layers, hidden, inner, heads, kv_heads, head_dim, block_size, threads;
    float epsilon;
    const Layer* layer;
    const float *final_norm, *cosines, *sines;  // cosines, sines: [context][head_dim / 2]
    Matrix head;
};

// A step's attention in pieces: tokens [token_begin, token_end) of the list `tokens` against keys [key_begin, key_end)
// of one block table. A piece with partial < 0 finishes its tokens; others leave sums to be merged.
struct Piece {
    int32_t token_begin, token_end, table, key_begin, key_end, partial;
};

struct Step {
    int32_t rows, pieces, merges, sampled;
    const int32_t *positions, *slots, *tokens, *tables;
    const Piece* piece;
    const int32_t *merge_tokens, *merge_begin, *merge_partials;  // merge m joins partials [begin[m], begin[m + 1])
    const int32_t* sampled_rows;
    float *x, *normed, *qkv, *attended, *gated, *partials, *logits;
    float *keys, *values;  // [layers][blocks][kv heads][head_dim][block size] and [..][block size][head_dim]
    int64_t layer_stride;
};

}  // namespace rumormill
