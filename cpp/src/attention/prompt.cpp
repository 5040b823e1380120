// Attention of prompts: tiles of queries over all positions, each tile by one thread. What a query gets does not depend
// on the tile that it is in.
#include <algorithm>
#include <array>

#include "attention/attention.hpp"
#include "attention/attention_scratch.hpp"

namespace seeddelta {

namespace {

constexpr int64_t kHalf = kAttentionChunk / 2;

// What a query sees of a chunk.
struct Seen {
    std::array<uint64_t, 2> bits{}; // of positions
    bool all = false;               // of the chunk, with nothing added
};

// The first step of most chunks: no position is hidden and nothing added, or all are hidden.
Seen look(const AttentionProblem &p, int64_t chunk) {
    Seen seen;
    const int64_t begin = chunk * kAttentionChunk;
    if (p.mask32 == nullptr && begin + kAttentionChunk <= p.n_kv) {
        unsigned any = 0;
        unsigned other = 0;
        for (int64_t i = 0; p.mask != nullptr && i < kAttentionChunk; ++i) {
            any |= p.mask[begin + i];
            other |= p.mask[begin + i] ^ 0xFC00U;
        }
        if (any == 0) {
            seen.bits = {~uint64_t{0}, ~uint64_t{0}};
            seen.all = true;
            return seen;
        }
        if (other == 0) {
            return seen;
        }
    }
    visible_bits(p, chunk, seen.bits.data());
    return seen;
}

// The positions that a query sees as a range; where that does not say it all, with a bias.
PromptRow row_of(const AttentionProblem &p, int64_t chunk, const Seen &seen, float *bias) {
    if (seen.all) {
        return {nullptr, 0.0F, 0, static_cast<int32_t>(kAttentionChunk)};
    }
    const auto [low, high] = seen.bits;
    if ((low | high) == 0) {
        return {nullptr, 0.0F, 0, 0};
    }
    const int from = low != 0 ? std::countr_zero(low) : static_cast<int>(kHalf) + std::countr_zero(high);
    const int last = high != 0 ? 127 - std::countl_zero(high) : 63 - std::countl_zero(low);
    bool plain = std::popcount(low) + std::popcount(high) == last + 1 - from;
    for (int64_t i = chunk * kAttentionChunk + from; p.masked() && plain && i <= chunk * kAttentionChunk + last; ++i) {
        plain = 2 * p.mask_bits(i) == 0; // without the sign
    }
    if (plain) {
        return {nullptr, 0.0F, from, last + 1};
    }
    for (int64_t i = 0; i < kAttentionChunk; ++i) {
        const int64_t row = chunk * kAttentionChunk + i;
        const bool visible = (seen.bits[static_cast<size_t>(i / kHalf)] >> (i % kHalf) & 1) != 0;
        bias[i] = visible ? p.mask_value(row) : kNone;
    }
    return {bias, 0.0F, from, last + 1};
}

int64_t whole_rows(int64_t rows) {
    return (rows + kPromptRows - 1) / kPromptRows * kPromptRows;
}

// Queries of a tile: so many that widening a chunk takes little of the time, and that a core's cache holds all.
int64_t most_queries(const AttentionProblem &p) {
    const int64_t rows = p.dim_k + p.dim_v <= 256 ? 192 : 96;
    return std::clamp<int64_t>(rows / p.group(), 1, p.n_query);
}

// What a thread works with, carved out of its scratch.
struct Tile {
    float *q;      // [rows, dim_k]
    float *keys;   // WidenTask's
    float *values; // WidenTask's
    float *scores; // [kPromptRows, kAttentionChunk]
    float *top;    // [rows]
    float *sum;    // [rows]
    float *out;    // [rows, whole_panels(dim_v)]
    float *bias;   // [queries, kAttentionChunk]
    float *slope;  // [group]
    PromptRow *row;

    explicit Tile(const AttentionProblem &p, uint8_t *base) { carve(p, base); }

    int64_t carve(const AttentionProblem &p, uint8_t *base) {
        const int64_t queries = most_queries(p);
        const int64_t rows = whole_rows(queries * p.group());
        Carver carver(base);
        const auto take = [&](auto *&pointer, int64_t n) { carver.take(pointer, n); };
        take(q, rows * p.dim_k);
        take(keys, kAttentionChunk * p.dim_k);
        take(values, kAttentionChunk * whole_panels(p.dim_v));
        take(scores, kPromptRows * kAttentionChunk);
        take(top, rows);
        take(sum, rows);
        take(out, rows * whole_panels(p.dim_v));
        take(bias, queries * kAttentionChunk);
        take(slope, p.group());
        take(row, rows);
        return carver.used();
    }
};

// Queries begin .. begin + n of one stream, the heads of one KV head.
struct TileOf {
    const AttentionProblem &p;
    Tile &tile;
    int64_t kv_head;
    int64_t begin;
    int64_t n;

    int64_t rows() const { return whole_rows(n * p.group()); }

    void start() const {
        std::fill_n(tile.q, rows() * p.dim_k, 0.0F);
        std::fill_n(tile.top, rows(), kNone);
        std::fill_n(tile.sum, rows(), 0.0F);
        std::fill_n(tile.out, rows() * whole_panels(p.dim_v), 0.0F);
        for (int64_t g = 0; g < p.group(); ++g) {
            tile.slope[g] = slope_of(p, kv_head * p.group() + g);
        }
        for (int64_t row = 0; row < n * p.group(); ++row) {
            const int64_t head = kv_head * p.group() + row % p.group();
            scaled_query(p, head, begin + row / p.group(), tile.q + row * p.dim_k);
        }
    }

    void chunk(int64_t at) const {
        std::array<uint64_t, 2> any{};
        std::fill_n(tile.row, rows(), PromptRow{nullptr, 0.0F, 0, 0});
        for (int64_t i = 0; i < n; ++i) {
            const AttentionProblem one = p.query(begin + i);
            const Seen seen = look(one, at);
            any = {any[0] | seen.bits[0], any[1] | seen.bits[1]};
            PromptRow row = row_of(one, at, seen, tile.bias + i * kAttentionChunk);
            for (int64_t g = 0; g < p.group(); ++g) {
                row.slope = tile.slope[g];
                tile.row[i * p.group() + g] = row;
            }
        }
        if ((any[0] | any[1]) == 0) {
            return;
        }
        const int64_t first = at * kAttentionChunk;
        kernels().attention.widen({p.k_type, p.v_type, p.k + kv_head * p.k_head + first * p.k_row,
                                   p.v + kv_head * p.v_head + first * p.v_row, p.k_row, p.v_row, p.dim_k, p.dim_v,
                                   any.data(), tile.keys, tile.values});
        kernels().attention.prompt({tile.q, rows(), p.dim_k, p.dim_v, tile.keys, tile.values, tile.row, p.softcap,
                                    tile.scores, tile.top, tile.sum, tile.out});
    }

    void finish() const {
        for (int64_t row = 0; row < n * p.group(); ++row) {
            const int64_t head = kv_head * p.group() + row % p.group();
            const float top = p.sinks != nullptr ? std::max(tile.top[row], p.sinks[head]) : tile.top[row];
            const float factor = tile.top[row] == kNone ? 0.0F : exp_defined(tile.top[row] - top);
            const float sink = p.sinks != nullptr ? exp_defined(p.sinks[head] - top) : 0.0F;
            const float total = tile.sum[row] * factor + sink;
            const float share = total == 0.0F ? 0.0F : factor / total;
            float *out = p.out + (begin + row / p.group()) * p.out_query + head * p.out_stride;
            for (int64_t d = 0; d < p.dim_v; ++d) {
                out[d] = tile.out[row * whole_panels(p.dim_v) + d] * share;
            }
        }
    }
};

} // namespace

int64_t Attention::prompt_bytes(const AttentionProblem &p) {
    return Tile(p, nullptr).carve(p, nullptr);
}

void Attention::prompt(const AttentionProblem &p, int ith, int nth) {
    Tile tile(p, thread_scratch(prompt_bytes(p)));
    const int64_t share = (p.n_query * p.n_kv_head * p.n_stream + nth - 1) / nth; // at least a tile for each thread
    const int64_t queries = std::clamp<int64_t>(share, 1, most_queries(p));
    const int64_t tiles = (p.n_query + queries - 1) / queries;
    for (int64_t item = ith; item < p.n_stream * tiles * p.n_kv_head; item += nth) {
        const AttentionProblem one = p.stream(item / p.n_kv_head / tiles);
        const int64_t begin = item / p.n_kv_head % tiles * queries;
        const TileOf work{one, tile, item % p.n_kv_head, begin, std::min(queries, p.n_query - begin)};
        work.start();
        for (int64_t chunk = 0; chunk < p.chunks(); ++chunk) {
            work.chunk(chunk);
        }
        work.finish();
    }
}

} // namespace seeddelta
