// A Llama-family decoder's whole forward pass on a paged KV cache, for CPUs; called through ctypes.
//
// Weights lie in panels of 16 output rows, so one SIMD register holds the same input's weight for 16 outputs and no
// sum ever crosses lanes. Each output is summed over its inputs in the same order whatever the batch, so a row's
// result doesn't depend on its batch mates. Everything is computed in fp32, whatever the weights are stored in.
// One OpenMP region spans the pass: threads meet at barriers instead of being started for every operation.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

constexpr int LANES = 16;        // outputs per panel, keys per score register
constexpr int BLOCK = 32;        // inputs that share a scale in quantised panels
constexpr int ROW_BLOCK = 240;   // rows of x that stay in the second-level cache while all panels pass
constexpr int KEY_TILE = 64;     // keys between two steps of the running softmax
constexpr int MAX_HEAD = 256;    // head_dim
#if defined(__AVX512F__)
constexpr int ROWS = 12;         // rows x 2 panels of sums fill the registers
constexpr int QUERIES = 8;
#else
constexpr int ROWS = 3;
constexpr int QUERIES = 4;
#endif

typedef float v16 __attribute__((vector_size(64)));
typedef int i16 __attribute__((vector_size(64)));

inline v16 load(const float* p) { v16 v; std::memcpy(&v, p, sizeof v); return v; }
inline void store(float* p, v16 v) { std::memcpy(p, &v, sizeof v); }
inline v16 splat(float x) { return v16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

inline float half_to_float(uint16_t h) {
    uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023, bits;
    if (exponent == 31) bits = sign | 0x7f800000u | mantissa << 13;
    else if (exponent) bits = sign | (exponent + 112) << 23 | mantissa << 13;
    else { float f = std::ldexp(float(mantissa), -24); return sign ? -f : f; }
    float f; std::memcpy(&f, &bits, 4); return f;
}

inline v16 load_half(const uint8_t* p) {
#if defined(__AVX512F__)
    return (v16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__) && defined(__F16C__)
    v16 v; __m256 low = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
    __m256 high = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + 1));
    std::memcpy(&v, &low, 32); std::memcpy((char*)&v + 32, &high, 32); return v;
#else
    v16 v; for (int i = 0; i < LANES; i++) { uint16_t h; std::memcpy(&h, p + 2 * i, 2); v[i] = half_to_float(h); }
    return v;
#endif
}

typedef uint8_t b16 __attribute__((vector_size(16)));
typedef int8_t s16 __attribute__((vector_size(16)));

inline v16 widen(b16 b) {
#if defined(__AVX512F__)
    return (v16)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32((__m128i)b));
#else
    return __builtin_convertvector(__builtin_convertvector(b, i16), v16);
#endif
}

inline v16 widen(s16 b) {
#if defined(__AVX512F__)
    return (v16)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)b));
#else
    return __builtin_convertvector(__builtin_convertvector(b, i16), v16);
#endif
}

// exp for x <= 0, relative error below 2e-7: range reduction by ln 2 and a degree 7 polynomial.
inline v16 exponential(v16 x) {
    x = x < -87.0f ? splat(-87.0f) : x;
    v16 scaled = x * 1.44269504f;
    i16 whole = __builtin_convertvector(scaled - 0.5f, i16);
    v16 n = __builtin_convertvector(whole, v16);
    v16 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    v16 p = splat(1.0f / 5040);
    for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = p * r + c;
    return p * (v16)((whole + 127) << 23);
}

inline v16 swap(v16 v, int distance) {  // lanes i and i ^ distance change places
    const i16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#if defined(__clang__)
    v16 swapped;
    for (int i = 0; i < LANES; i++) swapped[i] = v[(lane ^ distance)[i]];
    return swapped;
#else
    return __builtin_shuffle(v, lane ^ distance);
#endif
}

inline float sum(v16 v) {
    for (int distance = LANES / 2; distance; distance /= 2) v += swap(v, distance);
    return v[0];
}

inline float maximum(v16 v) {
    for (int distance = LANES / 2; distance; distance /= 2) {
        v16 other = swap(v, distance);
        v = other > v ? other : v;
    }
    return v[0];
}

// ---- weights ------------------------------------------------------------------------------------------------------

enum Format { F32, F16, Q8, Q4 };
constexpr int BLOCK_BYTES[] = {BLOCK * 64, BLOCK * 32, 32 + BLOCK * 16, 64 + BLOCK * 8};

struct Matrix {
    int32_t format, outputs, inputs, panels;  // panels: an even number, the last ones padded with zeros
    const uint8_t* data;                      // [panels][ceil(inputs / 32)] blocks
    const float* bias;                        // [panels * 16] or null
    int64_t panel_bytes() const { return int64_t((inputs + BLOCK - 1) / BLOCK) * BLOCK_BYTES[format]; }
};

template <int F> struct Scale {
    v16 d{}, m{};
    void read(const uint8_t* block) {
        if constexpr (F == Q8 || F == Q4) d = load_half(block);
        if constexpr (F == Q4) m = load_half(block + 32);
    }
    // The weights of 16 outputs for input k of the block: Q8 is d q, Q4 is d q + m.
    v16 weight(const uint8_t* block, int k) const {
        if constexpr (F == F32) return load((const float*)block + k * LANES);
        if constexpr (F == F16) return load_half(block + k * 32);
        if constexpr (F == Q8) { s16 q; std::memcpy(&q, block + 32 + k * 16, 16); return d * widen(q); }
        b16 q; std::memcpy(&q, block + 64 + (k & 15) * 16, 16);
        return d * widen(k < 16 ? b16(q & 15) : b16(q >> 4)) + m;
    }
};

// Sums of M rows of x against P neighbouring panels.
template <int M, int P, int F>
inline void tile(const float* x, int64_t stride, const uint8_t* panel, int64_t panel_bytes, int inputs, v16 (&acc)[M][P]) {
    for (int i = 0; i < M; i++) for (int p = 0; p < P; p++) acc[i][p] = v16{};
    auto part = [&](const uint8_t* block, const float* rows, const Scale<F>* scale, int from, int to) {
        for (int k = from; k < to; k++) {
            v16 w[P];
            for (int p = 0; p < P; p++) w[p] = scale[p].weight(block + p * panel_bytes, k);
            for (int i = 0; i < M; i++) {
                v16 value = splat(rows[i * stride + k]);
                for (int p = 0; p < P; p++) acc[i][p] += value * w[p];
            }
        }
    };
    for (int k0 = 0; k0 < inputs; k0 += BLOCK, panel += BLOCK_BYTES[F]) {
        Scale<F> scale[P];
        for (int p = 0; p < P; p++) scale[p].read(panel + p * panel_bytes);
        int left = std::min(BLOCK, inputs - k0);
        if (left == BLOCK) {  // two halves of known length: quantised blocks keep each in one nibble
            part(panel, x + k0, scale, 0, BLOCK / 2);
            part(panel, x + k0, scale, BLOCK / 2, BLOCK);
        } else {
            part(panel, x + k0, scale, 0, left);
        }
    }
}

enum Mode { STORE, ADD, SWIGLU };  // SWIGLU: even panels gate the odd ones after them

struct Output {
    float* data;
    int64_t stride;
    Mode mode;
};

template <int P>
inline void finish(const Matrix& w, const Output& out, int row, int panel, v16* acc) {
    if (w.bias) for (int p = 0; p < P; p++) acc[p] += load(w.bias + (panel + p) * LANES);
    float* to = out.data + row * out.stride;
    if (out.mode == SWIGLU) {
        for (int p = 0; p + 1 < P; p += 2) {
            v16 gate = acc[p], magnitude = gate < 0 ? gate : -gate;
            v16 e = exponential(magnitude);  // of -|gate|
            v16 sigmoid = (gate < 0 ? e : splat(1.0f)) / (e + 1.0f);
            store(to + (panel + p) / 2 * LANES, gate * sigmoid * acc[p + 1]);
        }
        return;
    }
    for (int p = 0; p < P; p++) {
        int column = (panel + p) * LANES, width = std::min(LANES, w.outputs - column);
        if (width == LANES) {
            store(to + column, out.mode == ADD ? load(to + column) + acc[p] : acc[p]);
        } else {
            for (int i = 0; i < width; i++) to[column + i] = acc[p][i] + (out.mode == ADD ? to[column + i] : 0.0f);
        }
    }
}

template <int M, int P, int F>
void run_tile(const Matrix& w, const float* x, int64_t stride, const uint8_t* panels, int64_t panel_bytes, int panel,
              const Output& out, int row) {
    v16 acc[M][P];
    tile<M, P, F>(x + row * stride, stride, panels, panel_bytes, w.inputs, acc);
    for (int i = 0; i < M; i++) finish<P>(w, out, row + i, panel, acc[i]);
}

// A tile of at most `tall` rows; returns how many it took.
template <int P, int F, int M = ROWS>
int run_some(const Matrix& w, const float* x, int64_t stride, const uint8_t* panels, int64_t panel_bytes, int panel,
             const Output& out, int row, int tall) {
    if (tall >= M) {
        run_tile<M, P, F>(w, x, stride, panels, panel_bytes, panel, out, row);
        return M;
    }
    if constexpr (M > 1) return run_some<P, F, (M > 6 ? M - 2 : M - 1)>(w, x, stride, panels, panel_bytes, panel, out, row, tall);
    return 0;
}

// Rows [begin, end) of x against P panels, in tiles as tall as the registers allow; the last two of like height.
template <int P, int F>
void run_rows(const Matrix& w, const float* x, int64_t stride, const uint8_t* panels, int64_t panel_bytes, int panel,
              const Output& out, int begin, int end) {
    while (begin < end) {
        int left = end - begin, tall = left > ROWS && left < 2 * ROWS ? (left + 1) / 2 : left;
        begin += run_some<P, F>(w, x, stride, panels, panel_bytes, panel, out, begin, tall);
    }
}

template <int P, int F> void unpack(const Matrix& w, const uint8_t* panels, int64_t panel_bytes, float* to) {
    int64_t to_panel = int64_t((w.inputs + BLOCK - 1) / BLOCK) * BLOCK * LANES;
    for (int p = 0; p < P; p++) {
        const uint8_t* block = panels + p * panel_bytes;
        for (int k0 = 0; k0 < w.inputs; k0 += BLOCK, block += BLOCK_BYTES[F]) {
            Scale<F> scale;
            scale.read(block);
            for (int k = 0; k < BLOCK; k++) store(to + p * to_panel + (k0 + k) * LANES, scale.weight(block, k));
        }
    }
}

// One group of P panels against rows [begin, end): few rows read the weights as they are stored, many unpack first.
template <int P, int F>
void run_group(const Matrix& w, const float* x, int64_t stride, int panel, const Output& out, int begin, int end,
               std::vector<float>& scratch) {
    int64_t panel_bytes = w.panel_bytes();
    const uint8_t* panels = w.data + panel * panel_bytes;
    if (F == F32 || end - begin <= 2 * ROWS) {
        run_rows<P, F>(w, x, stride, panels, panel_bytes, panel, out, begin, end);
        return;
    }
    int64_t unpacked = int64_t((w.inputs + BLOCK - 1) / BLOCK) * BLOCK * LANES;
    scratch.resize(P * unpacked);
    unpack<P, F>(w, panels, panel_bytes, scratch.data());
    run_rows<P, F32>(w, x, stride, (const uint8_t*)scratch.data(), unpacked * 4, panel, out, begin, end);
}

template <int F>
void multiply_as(const Matrix& w, const float* x, int64_t stride, int rows, const Output& out) {
    static thread_local std::vector<float> scratch;
    if (rows == 1) {  // more panels at once hide the latency of each sum
        int groups = (w.panels + 3) / 4;
#pragma omp for schedule(static)
        for (int g = 0; g < groups; g++) {
            int panel = g * 4, width = std::min(4, w.panels - panel);
            const uint8_t* panels = w.data + panel * w.panel_bytes();
            if (width == 4) run_tile<1, 4, F>(w, x, stride, panels, w.panel_bytes(), panel, out, 0);
            else run_tile<1, 2, F>(w, x, stride, panels, w.panel_bytes(), panel, out, 0);
        }
        return;
    }
    int groups = w.panels / 2;
    for (int begin = 0; begin < rows; begin += ROW_BLOCK) {
        int end = std::min(rows, begin + ROW_BLOCK);
#pragma omp for schedule(static) nowait
        for (int g = 0; g < groups; g++) run_group<2, F>(w, x, stride, g * 2, out, begin, end, scratch);
    }
#pragma omp barrier
}

void multiply(const Matrix& w, const float* x, int64_t stride, int rows, Output out) {
    switch (w.format) {
        case F32: multiply_as<F32>(w, x, stride, rows, out); break;
        case F16: multiply_as<F16>(w, x, stride, rows, out); break;
        case Q8: multiply_as<Q8>(w, x, stride, rows, out); break;
        default: multiply_as<Q4>(w, x, stride, rows, out);
    }
}

// ---- small operations ---------------------------------------------------------------------------------------------

inline void norm_row(const float* x, const float* weight, int size, float epsilon, float* out) {
    v16 squares{};
    int i = 0;
    float rest = 0;
    for (; i + LANES <= size; i += LANES) { v16 v = load(x + i); squares += v * v; }
    for (; i < size; i++) rest += x[i] * x[i];
    float scale = 1.0f / std::sqrt((sum(squares) + rest) / size + epsilon);
    for (i = 0; i < size; i++) out[i] = x[i] * scale * weight[i];
}

void norm(const float* x, const float* weight, int rows, int size, float epsilon, float* out) {
#pragma omp for schedule(static)
    for (int r = 0; r < rows; r++) norm_row(x + int64_t(r) * size, weight, size, epsilon, out + int64_t(r) * size);
}

}  // namespace

extern "C" {

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

}  // extern "C"

namespace {

// Rotates queries and keys, and stores keys and values in their slots.
void rotate_and_store(const Model& model, const Layer& layer, const Step& step, float* keys, float* values) {
    int d = model.head_dim, half = d / 2, size = model.block_size;
    int64_t stride = int64_t(model.heads + 2 * model.kv_heads) * d;
#pragma omp for schedule(static)
    for (int r = 0; r < step.rows; r++) {
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

void attend_piece(const Head& head, const Piece& piece) {
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

void merge(const Model& model, const Step& step) {
    int d = model.head_dim;
#pragma omp for schedule(static)
    for (int job = 0; job < step.merges * model.heads; job++) {
        int m = job / model.heads, head = job % model.heads;
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
}

void attend(const Model& model, const Layer& layer, const Step& step, const float* keys, const float* values) {
#pragma omp for schedule(dynamic)
    for (int job = 0; job < step.pieces * model.kv_heads; job++) {
        Head head{model, step, keys, values, job % model.kv_heads, layer.window};
        attend_piece(head, step.piece[job / model.kv_heads]);
    }
    if (step.merges) merge(model, step);
}

}  // namespace

extern "C" {

// Computes a step: x [rows][hidden] holds the embeddings and is overwritten, logits [sampled][vocabulary] are written.
void forward(const Model* model_, const Step* step_) {
    const Model& model = *model_;
    const Step& step = *step_;
    int hidden = model.hidden, d = model.head_dim;
    int64_t qkv = int64_t(model.heads + 2 * model.kv_heads) * d, query = int64_t(model.heads) * d;
#pragma omp parallel num_threads(model.threads)
    {
        for (int l = 0; l < model.layers; l++) {
            const Layer& layer = model.layer[l];
            float *keys = step.keys + l * step.layer_stride, *values = step.values + l * step.layer_stride;
            norm(step.x, layer.input_norm, step.rows, hidden, model.epsilon, step.normed);
            multiply(layer.qkv, step.normed, hidden, step.rows, {step.qkv, qkv, STORE});
            rotate_and_store(model, layer, step, keys, values);
            attend(model, layer, step, keys, values);
            multiply(layer.output, step.attended, query, step.rows, {step.x, hidden, ADD});
            norm(step.x, layer.mlp_norm, step.rows, hidden, model.epsilon, step.normed);
            multiply(layer.gate_up, step.normed, hidden, step.rows, {step.gated, model.inner, SWIGLU});
            multiply(layer.down, step.gated, model.inner, step.rows, {step.x, hidden, ADD});
        }
#pragma omp for schedule(static)
        for (int r = 0; r < step.sampled; r++)
            norm_row(step.x + int64_t(step.sampled_rows[r]) * hidden, model.final_norm, hidden, model.epsilon, step.normed + int64_t(r) * hidden);
        if (step.sampled) multiply(model.head, step.normed, hidden, step.sampled, {step.logits, model.head.outputs, STORE});
    }
}

// Packs fp32 weights [outputs][inputs] into F32 or F16 panels.
void pack(const float* weights, int32_t format, int32_t outputs, int32_t inputs, int32_t panels, uint8_t* to) {
    int blocks = (inputs + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
    for (int p = 0; p < panels; p++) {
        for (int k = 0; k < blocks * BLOCK; k++) {
            float column[LANES];
            for (int i = 0; i < LANES; i++) {
                int row = p * LANES + i;
                column[i] = row < outputs && k < inputs ? weights[int64_t(row) * inputs + k] : 0.0f;
            }
            int64_t at = (int64_t(p) * blocks * BLOCK + k) * LANES;
            if (format == F32) { std::memcpy((float*)to + at, column, sizeof column); continue; }
            for (int i = 0; i < LANES; i++) {
                _Float16 half = (_Float16)std::min(65504.0f, std::max(-65504.0f, column[i]));
                std::memcpy(to + (at + i) * 2, &half, 2);
            }
        }
    }
}

}  // extern "C"
