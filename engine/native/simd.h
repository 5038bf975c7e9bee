// Vectors of 16 floats, as the widest registers of this CPU hold them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace rumormill {

constexpr int LANES = 16;

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

inline void norm_row(const float* x, const float* weight, int size, float epsilon, float* out) {
    v16 squares{};
    int i = 0;
    float rest = 0;
    for (; i + LANES <= size; i += LANES) { v16 v = load(x + i); squares += v * v; }
    for (; i < size; i++) rest += x[i] * x[i];
    float scale = 1.0f / std::sqrt((sum(squares) + rest) / size + epsilon);
    for (i = 0; i < size; i++) out[i] = x[i] * scale * weight[i];
}

}  // namespace rumormill
