// A Llama-family decoder's whole forward pass on a paged KV cache, for CPUs; called through ctypes.
//
// Everything is computed in fp32, whatever the weights are stored in.

#include "attention.h"

using namespace rumormill;

namespace {

constexpr int LAYER_PHASES = 9, LAST_PHASES = 2;

void decode(Share& share, const Model& model, const Step& step) {
    int hidden = model.hidden;
    int64_t query = int64_t(model.heads) * model.head_dim, qkv = query + 2 * int64_t(model.kv_heads) * model.head_dim;
    auto norm = [&](const float* weight) {
        share.rows(step.rows, [&](int row) {
            int64_t at = int64_t(row) * hidden;
            norm_row(step.x + at, weight, hidden, model.epsilon, step.normed + at);
        });
    };
    for (int l = 0; l < model.layers; l++) {
        const Layer& layer = model.layer[l];
        float *keys = step.keys + l * step.layer_stride, *values = step.values + l * step.layer_stride;
        norm(layer.input_norm);
        multiply(share, layer.qkv, step.normed, hidden, step.rows, {step.qkv, qkv, STORE});
        share.rows(step.rows, [&](int row) { rotate_and_store(model, layer, step, row, keys, values); });
        attend(share, model, layer, step, keys, values);
        multiply(share, layer.output, step.attended, query, step.rows, {step.x, hidden, ADD});
        norm(layer.mlp_norm);
        multiply(share, layer.gate_up, step.normed, hidden, step.rows, {step.gated, model.inner, SWIGLU});
        multiply(share, layer.down, step.gated, model.inner, step.rows, {step.x, hidden, ADD});
    }
    if (!step.sampled) return;
    share.rows(step.sampled, [&](int row) {
        const float* from = step.x + int64_t(step.sampled_rows[row]) * hidden;
        norm_row(from, model.final_norm, hidden, model.epsilon, step.normed + int64_t(row) * hidden);
    });
    multiply(share, model.head, step.normed, hidden, step.sampled, {step.logits, model.head.outputs, STORE});
}

}  // namespace

extern "C" {

// Computes a step: x [rows][hidden] holds the embeddings and is overwritten, logits [sampled][vocabulary] are written.
void forward(const Model* model, const Step* step) {
    Team::instance().run(model->threads, model->layers * LAYER_PHASES + LAST_PHASES,
                         [model = *model, step = *step](Share& share) { decode(share, model, step); });
}

// Returns when no thread reads a model any more: to be called before one is freed.
void rest() { Team::instance().rest(); }

// Packs fp32 weights [outputs][inputs] into F32 or F16 panels.
void pack(const float* weights, int32_t format, int32_t outputs, int32_t inputs, int32_t panels, int32_t threads,
          uint8_t* to) {
    Team::instance().run(threads, 1, [=](Share& share) {
        share.each(panels, [&](int panel) { pack_panel(weights, format, outputs, inputs, panel, to); });
    });
}

}  // extern "C"
