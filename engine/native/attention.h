// Attention over the paged KV cache, block by block in place, with a running softmax.
//
// keys: [blocks][kv heads][head_dim][block size], so that scores of 16 keys fill a register; values: [..][block size][head_dim].
#pragma once

#include "step.h"

namespace rumormill {

constexpr int KEY_TILE = 64;     // keys between two steps of the running softmax
constexpr int MAX_HEAD = 256;    // head_dim
#if defined(__AVX512F__)
constexpr int QUERIES = 8;
#else
constexpr int QUERIES = 4;
#endif

// Rotates queries and keys, and stores keys and values in their slots.
inline void rotate_and_store(const Model& model, const Layer& layer, const Step& step, int r, float* keys, float* values) {
    int d = model.head_dim, half = d / 2, size = model.block_size;
    int64_t stride = int64_t(model.heads + 2 * model.kv_heads) * d;
    float* row = step.qkv + r * stride;
    const float* cosine = model.cosines + int64_t(step.positions[r]) * half;
    const float* sine = model.sines + int64_t(step.positions[r]) * half;
    for (int h = 0; h < model.heads + model.kv_heads; h++) {
        float* head = row + h * d;
        const float* weight = h < model.heads ? layer.query_norm : layer.key_norm;
        if (weight) norm_row(head, weight, d, model.epsilon, head);
        for (int i = 0; i < half; i++) {
            float a = head[i], b = head[i + half];
            head[i] = a * cosine[i] - b * sine[i];
            head[i + half] = b * cosine[i] + a * sine[i];
        }
    }
    int64_t block = step.slots[r] / size, offset = step.slots[r] % size;
    for (int h = 0; h < model.kv_heads; h++) {
        const float* key = row + (model.heads + h) * d;
        float* to = keys + (block * model.kv_heads + h) * d * size + offset;
        for (int i = 0; i < d; i++) to[int64_t(i) * size] = key[i];
        std::memcpy(values + ((block * model.kv_heads + h) * size + offset) * d, key + model.kv_heads * d, d * 4);
    }
}

struct Head {  // what the attention of one KV head of a layer reads
    const Model& model;
    const Step& step;
    const float *keys, *values;
    int kv_head, window;
    const float* key_block(int block) const {
        return keys + (int64_t(block) * model.kv_heads + kv_head) * model.head_dim * model.block_size;
    }
    const float* value_block(int block) const {
        return values + (int64_t(block) * model.kv_heads + kv_head) * model.head_dim * model.block_size;
    }
};

struct Query {  // one row of a tile: where it is, what it may see, and its running softmax
    int low, high;  // keys [low, high)
    float largest, total;
};

// Scores of Q queries against the keys [key, key + count) of a tile.
template <int Q>
inline void score(const Head& head, const int32_t* table, int key, int count, const float* queries, float* scores) {
    int d = head.model.head_dim, size = head.model.block_size;
    for (int k = 0; k < count; k += LANES) {
        const float* keys = head.key_block(table[(key + k) / size]) + (key + k) % size;
        v16 acc[Q];
        for (int q = 0; q < Q; q++) acc[q] = v16{};
        for (int i = 0; i < d; i++) {
            v16 column = load(keys + int64_t(i) * size);
            for (int q = 0; q < Q; q++) acc[q] += column * queries[q * d + i];
        }
        for (int q = 0; q < Q; q++) store(scores + q * KEY_TILE + k, acc[q]);
    }
}

// Adds `count` weighted values to the sums of Q queries.
template <int Q>
inline void accumulate(const Head& head, const int32_t* table, int key, int count, const float* weights, float* sums) {
    int d = head.model.head_dim, size = head.model.block_size;
    for (int i = 0; i < d; i += 4 * LANES) {
        int width = std::min(4, (d - i + LANES - 1) / LANES);
        v16 acc[Q][4];
        for (int q = 0; q < Q; q++) for (int j = 0; j < 4; j++) acc[q][j] = j < width ? load(sums + q * MAX_HEAD + i + j * LANES) : v16{};
        for (int first = 0; first < count; first += LANES) {
            const float* value = head.value_block(table[(key + first) / size]) + (key + first) % size * d + i;
            const float* weight = weights + first;
            for (int k = 0; k < std::min(LANES, count - first); k++, value += d) {
                v16 part[4];
                if (width == 4) {
                    for (int j = 0; j < 4; j++) part[j] = load(value + j * LANES);
                } else {
                    for (int j = 0; j < 4; j++) {
                        part[j] = v16{};
                        if (j < width) std::memcpy(&part[j], value + j * LANES, std::min(LANES, d - i - j * LANES) * 4);
                    }
                }
                for (int q = 0; q < Q; q++)
                    for (int j = 0; j < 4; j++) acc[q][j] += splat(weight[q * KEY_TILE + k]) * part[j];
            }
        }
        for (int q = 0; q < Q; q++) for (int j = 0; j < width; j++) store(sums + q * MAX_HEAD + i + j * LANES, acc[q][j]);
    }
}

// One step of the running softmax (Milakov and Gimelshein, arXiv 1805.02867): scores become weights.
inline void rescale(Query& query, int key, int count, float* scores, float* sums, int d) {
    v16 largest = splat(query.largest);
    bool masked = key < query.low || key + count > query.high;
    if (masked) {
        const i16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        for (int k = 0; k < count; k += LANES) {
            i16 at = lane + (key + k);
            v16 value = load(scores + k);
            store(scores + k, (at >= query.low) & (at < query.high) ? value : splat(-INFINITY));
        }
    }
    for (int k = 0; k < count; k += LANES) {
        v16 value = load(scores + k);
        largest = value > largest ? value : largest;
    }
    float top = maximum(largest);
    if (top == -INFINITY) {
        std::memset(scores, 0, count * 4);
        return;
    }
    v16 total{};
    for (int k = 0; k < count; k += LANES) {
        v16 value = load(scores + k), weight = exponential(value - top);
        if (masked) weight = value == -INFINITY ? v16{} : weight;
        store(scores + k, weight);
        total += weight;
    }
    float shrink = query.largest == -INFINITY ? 0.0f : std::exp(query.largest - top);
    if (shrink != 1.0f) for (int i = 0; i < d; i++) sums[i] *= shrink;
    query.total = query.total * shrink + sum(total);
    query.largest = top;
}

template <int Q>
inline void attend_tile(const Head& head, const int32_t* table, int key, int count, const float* queries, Query* query, float* sums) {
    alignas(64) float scores[Q * KEY_TILE];
    score<Q>(head, table, key, (count + LANES - 1) / LANES * LANES, queries, scores);
    for (int q = 0; q < Q; q++) rescale(query[q], key, (count + LANES - 1) / LANES * LANES, scores + q * KEY_TILE, sums + q * MAX_HEAD, head.model.head_dim);
    if constexpr (Q > 4) {
        accumulate<4>(head, table, key, count, scores, sums);
        accumulate<Q - 4>(head, table, key, count, scores + 4 * KEY_TILE, sums + 4 * MAX_HEAD);
    } else {
        accumulate<Q>(head, table, key, count, scores, sums);
    }
}

template <int Q = QUERIES>
void attend_rows(int rows, const Head& head, const int32_t* table, int key, int count, const float* queries, Query* query, float* sums) {
    if (rows == Q) attend_tile<Q>(head, table, key, count, queries, query, sums);
    else if constexpr (Q > 1) attend_rows<Q - 1>(rows, head, table, key, count, queries, query, sums);
}

// Layout of a partial: per query head its largest score, its total and head_dim sums.
inline float* partial_of(const Step& step, const Model& model, int partial, int head) {
    return step.partials + (int64_t(partial) * model.heads + head) * (model.head_dim + 2);
}

inline void attend_piece(const Head& head, const Piece& piece) {
    const Model& model = head.model;
    const Step& step = head.step;
    int d = model.head_dim, share = model.heads / model.kv_heads, rows = (piece.token_end - piece.token_begin) * share;
    int64_t stride = int64_t(model.heads + 2 * model.kv_heads) * d;
    const int32_t* table = step.tables + piece.table;
    float scale = 1.0f / std::sqrt(float(d));
    static thread_local std::vector<float> queries, sums;
    static thread_local std::vector<Query> states;
    queries.resize(rows * d);
    sums.assign(rows * MAX_HEAD, 0.0f);
    states.resize(rows);
    for (int r = 0; r < rows; r++) {
        int token = step.tokens[piece.token_begin + r / share], position = step.positions[token];
        const float* from = step.qkv + token * stride + (head.kv_head * share + r % share) * d;
        for (int i = 0; i < d; i++) queries[r * d + i] = from[i] * scale;
        int low = head.window ? std::max(0, position + 1 - head.window) : 0;
        states[r] = {low, std::min(position + 1, piece.key_end), -INFINITY, 0.0f};
    }
    int first = piece.key_end;
    for (int r = 0; r < rows; r++) first = std::min(first, states[r].low);
    first = std::max(piece.key_begin, first / LANES * LANES);
    for (int key = first; key < piece.key_end; key += KEY_TILE) {
        int count = std::min(KEY_TILE, piece.key_end - key);
        for (int r = 0; r < rows; r += QUERIES) {
            int tall = std::min(QUERIES, rows - r);
            if (states[r + tall - 1].high <= key) continue;  // rows are in order of position
            attend_rows<>(tall, head, table, key, count, &queries[r * d], &states[r], &sums[r * MAX_HEAD]);
        }
    }
    for (int r = 0; r < rows; r++) {
        int index = piece.token_begin + r / share, query_head = head.kv_head * share + r % share;
        const float* from = &sums[r * MAX_HEAD];
        if (piece.partial < 0) {
            float* to = step.attended + (int64_t(step.tokens[index]) * model.heads + query_head) * d;
            for (int i = 0; i < d; i++) to[i] = from[i] / states[r].total;
        } else {
            float* to = partial_of(step, model, piece.partial + r / share, query_head);
            to[0] = states[r].largest;
            to[1] = states[r].total;
            std::memcpy(to + 2, from, d * 4);
        }
    }
}

// Joins the partial sums of one token's head.
inline void merge(const Model& model, const Step& step, int m, int head) {
    int d = model.head_dim;
    const int32_t *begin = step.merge_partials + step.merge_begin[m], *end = step.merge_partials + step.merge_begin[m + 1];
    float top = -INFINITY, total = 0;
    for (auto p = begin; p < end; p++) top = std::max(top, partial_of(step, model, *p, head)[0]);
    float* to = step.attended + (int64_t(step.merge_tokens[m]) * model.heads + head) * d;
    std::memset(to, 0, d * 4);
    for (auto p = begin; p < end; p++) {
        const float* from = partial_of(step, model, *p, head);
        if (from[0] == -INFINITY) continue;
        float weight = std::exp(from[0] - top);
        total += weight * from[1];
        for (int i = 0; i < d; i++) to[i] += weight * from[2 + i];
    }
    for (int i = 0; i < d; i++) to[i] /= total;
}

// The attention of a step's rows in one layer: step.attended from step.qkv and the cache.
inline void attend(Share& share, const Model& model, const Layer& layer, const Step& step, const float* keys, const float* values) {
    share.each(step.pieces * model.kv_heads, [&](int job) {
        Head head{model, step, keys, values, job % model.kv_heads, layer.window};
        attend_piece(head, step.piece[job / model.kv_heads]);
    });
    if (step.merges)
        share.rows(step.merges * model.heads, [&](int job) { merge(model, step, job / model.heads, job % model.heads); });
}

}  // namespace rumormill
