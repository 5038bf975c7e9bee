// Linear layers: weights in panels of 16 output rows, multiplied with rows of activations.
//
// One SIMD register holds the same input's weight for 16 outputs, so no sum ever crosses lanes. Each output is summed
// over its inputs in the same order whatever the batch, so a row's result doesn't depend on its batch mates.
#pragma once

#include <algorithm>
#include <vector>

#include "simd.h"
#include "team.h"

namespace rumormill {

constexpr int BLOCK = 32;        // inputs that share a scale in quantised panels
constexpr int ROW_BLOCK = 240;   // rows of x that stay in the second-level cache while all panels pass
#if defined(__AVX512F__)
constexpr int ROWS = 12;         // rows x 2 panels of sums fill the registers
#else
constexpr int ROWS = 3;
#endif

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

// One row: each panel is one stream through memory, and a stream at a time is read fastest. Quantised panels cost more
// sums than bytes, and four at once hide the latency of each.
template <int F>
void run_single(const Matrix& w, const float* x, int panel, const Output& out) {
    int64_t panel_bytes = w.panel_bytes();
    const uint8_t* panels = w.data + panel * panel_bytes;
    if constexpr (F == F32 || F == F16) {
        v16 sums[2];
        for (int p = 0; p < 2; p++) {
            v16 acc[1][1];
            tile<1, 1, F>(x, 0, panels + p * panel_bytes, panel_bytes, w.inputs, acc);
            sums[p] = acc[0][0];
        }
        finish<2>(w, out, 0, panel, sums);
    } else {
        run_tile<1, 2, F>(w, x, 0, panels, panel_bytes, panel, out, 0);
    }
}

template <int F>
void multiply_as(Share& share, const Matrix& w, const float* x, int64_t stride, int rows, const Output& out) {
    int groups = w.panels / 2;
    if (rows == 1) {
        share.each(groups, [&](int group) { run_single<F>(w, x, group * 2, out); });
        return;
    }
    int blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    share.each(blocks * groups, [&](int piece) {
        static thread_local std::vector<float> scratch;
        int begin = piece / groups * ROW_BLOCK, end = std::min(rows, begin + ROW_BLOCK);
        run_group<2, F>(w, x, stride, piece % groups * 2, out, begin, end, scratch);
    });
}

// out = x w^T + bias for `rows` rows of x, as `out.mode` says.
inline void multiply(Share& share, const Matrix& w, const float* x, int64_t stride, int rows, const Output& out) {
    switch (w.format) {
        case F32: multiply_as<F32>(share, w, x, stride, rows, out); break;
        case F16: multiply_as<F16>(share, w, x, stride, rows, out); break;
        case Q8: multiply_as<Q8>(share, w, x, stride, rows, out); break;
        default: multiply_as<Q4>(share, w, x, stride, rows, out);
    }
}

// Packs the panel of fp32 weights [outputs][inputs] with the given number into F32 or F16.
inline void pack_panel(const float* weights, int format, int outputs, int inputs, int panel, uint8_t* to) {
    int padded = (inputs + BLOCK - 1) / BLOCK * BLOCK;
    for (int k = 0; k < padded; k++) {
        float column[LANES];
        for (int i = 0; i < LANES; i++) {
            int row = panel * LANES + i;
            column[i] = row < outputs && k < inputs ? weights[int64_t(row) * inputs + k] : 0.0f;
        }
        int64_t at = (int64_t(panel) * padded + k) * LANES;
        if (format == F32) { std::memcpy((float*)to + at, column, sizeof column); continue; }
        for (int i = 0; i < LANES; i++) {
            _Float16 half = (_Float16)std::min(65504.0f, std::max(-65504.0f, column[i]));
            std::memcpy(to + (at + i) * 2, &half, 2);
        }
    }
}

}  // namespace rumormill
