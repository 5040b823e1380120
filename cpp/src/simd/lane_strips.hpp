// Products with byte lanes in column layout, strip by strip, for any instruction set. Include inside an instruction-set
// unit only.
#pragma once
#include "simd/lane_columns.hpp"

namespace seeddelta {
namespace {

// What a product computes next: values [first, last) of a strip, from output `begin` to `end`.
struct StripPart {
    ColumnStrip strip;
    int first, last;
    int64_t end;
    bool has_room; // in y, for all these values

    SEEDDELTA_INLINE StripPart(const ColumnWeight &w, int64_t begin, int64_t all_end) : strip(w, begin) {
        const int64_t half = strip.outputs() / 2;
        const int64_t at = begin - strip.begin;
        const bool whole = at == 0 && (strip.streams == kWideStreams || all_end > strip.begin + half);
        first = static_cast<int>(at / strip.streams);
        last = whole ? static_cast<int>(kColumnValues) : first + static_cast<int>(kColumnValues / 2);
        end = strip.begin + last * strip.streams;
        has_room = end <= all_end;
        end = has_room ? end : all_end;
    }
};

template <class Ops>
void columns_lanes_simd(const ColumnWeight &w, const ColumnInput &in, int64_t begin, int64_t end, float *y) {
    __builtin_memset(y + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    with_pattern(*w.lane_code, [&]<class Pattern>() {
        for (int64_t o = begin; o < end;) {
            const StripPart part(w, o, end);
            const uint8_t *codes = part.strip.codes;
            const auto multiply = [&](float *out) {
                if (part.strip.streams == kWideStreams) {
                    LaneColumns<Ops, Pattern, true>::multiply(*w.lane_code, codes, in, part.first, part.last, out);
                } else {
                    LaneColumns<Ops, Pattern, false>::multiply(*w.lane_code, codes, in, part.first, part.last, out);
                }
            };
            if (part.has_room) {
                multiply(y + part.strip.begin);
            } else {
                alignas(64) float room[kOutputSlice] = {};
                multiply(room);
                __builtin_memcpy(y + o, room + (o - part.strip.begin),
                                 static_cast<size_t>(part.end - o) * sizeof(float));
            }
            o = part.end;
        }
    });
}

template <class Ops>
void columns_lanes_many_simd(const ColumnWeight &w, const Activations &a, int64_t begin, int64_t end, float *y,
                             int64_t y_stride) {
    for (int64_t token = 0; token < a.n_tokens; ++token) {
        __builtin_memset(y + token * y_stride + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    }
    alignas(64) uint8_t panel[kGroup * kWideOutputs];
    with_pattern(*w.lane_code, [&]<class Pattern>() {
        using Wide = LaneColumns<Ops, Pattern, true>;
        using Narrow = LaneColumns<Ops, Pattern, false>;
        for (int64_t o = begin; o < end;) {
            const StripPart part(w, o, end);
            for (int64_t g = 0; g < a.stride / kGroup; ++g) {
                const int64_t n = w.n_in - g * kGroup < kGroup ? w.n_in - g * kGroup : kGroup;
                const uint8_t *codes = part.strip.codes + g * kGroup * part.strip.bytes;
                float *out = y + part.strip.begin;
                if (part.strip.streams == kWideStreams) {
                    Wide::decode_group(*w.lane_code, codes, n, panel);
                    Wide::multiply_panel(a, g, panel, n, part.first, part.last, 0, a.n_tokens, out, y_stride);
                    continue;
                }
                Narrow::decode_group(*w.lane_code, codes, n, panel);
                if (part.has_room) {
                    Narrow::multiply_panel(a, g, panel, n, part.first, part.last, 0, a.n_tokens, out, y_stride);
                    continue;
                }
                for (int64_t token = 0; token < a.n_tokens; ++token) {
                    alignas(64) float room[kOutputSlice] = {};
                    float *mine = room + (o - part.strip.begin);
                    const auto bytes = static_cast<size_t>(part.end - o) * sizeof(float);
                    __builtin_memcpy(mine, y + token * y_stride + o, bytes);
                    Narrow::multiply_panel(a, g, panel, n, part.first, part.last, token, 1, room, 0);
                    __builtin_memcpy(y + token * y_stride + o, mine, bytes);
                }
            }
            o = part.end;
        }
    });
}

} // namespace
} // namespace seeddelta
