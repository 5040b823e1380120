#include "attention/attention.hpp"

#include <algorithm>
#include <cmath>

#include "attention/attention_scratch.hpp"

namespace seeddelta {

void Attention::reserve(const AttentionProblem &p, bool packed, bool compare) {
    const int64_t floats = p.is_prompt() ? 0 : p.n_stream * p.partial_floats();
    partials_.reserve(floats);
    if (packed) {
        estimates_.reserve(p.n_head * p.padded());
        tops_.reserve(p.n_head * p.chunks());
        visible_.reserve(2 * p.chunks());
    }
    if (compare) {
        exact_partials_.reserve(floats);
        compared_.resize(static_cast<size_t>(3 * p.n_head));
    }
}

int64_t Attention::scratch_bytes(const AttentionProblem &p) {
    return p.is_prompt() ? prompt_bytes(p) : Scratch().carve(p, nullptr);
}

int64_t Attention::attend(const AttentionProblem &p, Scratch &scratch, int64_t kv_head, int64_t chunk,
                          const int32_t *rows, const float *bias, int64_t n, const float *given, float negligible,
                          float *partials, float *keys, int64_t query, int64_t queries) const {
    const int64_t row = p.row(kv_head * p.group(), query);
    const int64_t heads = queries * p.group();
    float *partial = partials + (chunk * p.n_query * p.n_head + row) * (2 + p.dim_v);
    AttentionTask task{scratch.q + row * p.dim_k,
                       heads,
                       p.dim_k,
                       p.dim_v,
                       p.k_type,
                       p.v_type,
                       p.k + kv_head * p.k_head,
                       p.v + kv_head * p.v_head,
                       p.k_row,
                       p.v_row,
                       p.v_by_channel,
                       p.n_kv,
                       rows,
                       n,
                       bias,
                       scratch.slope + row,
                       p.softcap,
                       given,
                       negligible,
                       scratch.floats,
                       partial,
                       0,
                       keys == nullptr ? nullptr : keys + (chunk * p.n_head + row) * (2 + p.dim_k)};
    if (n == 0) {
        for (int64_t h = 0; h < heads; ++h) {
            partial[h * (2 + p.dim_v)] = kNone;
            partial[h * (2 + p.dim_v) + 1] = 0.0F;
        }
        return 0;
    }
    // Of all keys the next chunk's are next; chosen ones lie anywhere. The processor fetches rows without a gap itself.
    const int64_t k_bytes = cache_row_bytes(p.k_type, p.dim_k);
    const int64_t v_bytes = cache_row_bytes(p.v_type, p.dim_v);
    const bool apart =
        p.n_kv_head > 1 && !p.v_by_channel && p.k_row == p.n_kv_head * k_bytes && p.v_row == p.n_kv_head * v_bytes;
    if (apart && given == nullptr && negligible == 0.0F && chunk + 1 < p.chunks()) {
        task.next_k = p.k + (chunk + 1) * kAttentionChunk * p.k_row + kv_head * kAttentionChunk * k_bytes;
        task.next_v = p.v + (chunk + 1) * kAttentionChunk * p.v_row + kv_head * kAttentionChunk * v_bytes;
    }
    kernels().attention.attend(task);
    return task.values;
}

// Neighboring queries with the same mask are computed together, which changes no bit of theirs. Their positions are
// the same for all KV heads.
void Attention::attend_all(const AttentionProblem &p, Scratch &scratch, int64_t first_head, int64_t heads,
                           int64_t chunk, float *partials, float *keys) const {
    int64_t end = 0;
    for (int64_t begin = 0; begin < p.n_query; begin = end) {
        const int64_t most = std::min(p.n_query, begin + queries_at_once(p));
        for (end = begin + 1; end < most && same_mask(p, begin, end, chunk); ++end) {
        }
        const AttentionProblem first = p.query(begin);
        uint64_t bits[2];
        visible_bits(first, chunk, bits);
        bool biased = false;
        const int64_t n = gather(first, chunk, bits, scratch.rows, scratch.bias, biased);
        for (int64_t kv_head = first_head; kv_head < first_head + heads; ++kv_head) {
            attend(p, scratch, kv_head, chunk, scratch.rows, biased ? scratch.bias : nullptr, n, nullptr, 0.0F,
                   partials, keys, begin, end - begin);
        }
    }
}

void Attention::windows(const AttentionProblem &p, const int32_t *items, int64_t n, float *partials,
                        float *keys) const {
    if (n == 0) {
        return;
    }
    Scratch scratch(p);
    scratch.take_queries(p);
    for (int64_t i = 0; i < n; ++i) {
        attend_all(p, scratch, items[i] % p.n_kv_head, 1, items[i] / p.n_kv_head, partials, keys);
    }
}

void Attention::merge_all(const AttentionProblem &p, const float *partials, const float *shift, int ith,
                          int nth) const {
    const int64_t results = p.tokens() * p.n_head;
    for (int64_t result = results * ith / nth; result < results * (ith + 1) / nth; ++result) {
        const int64_t head = result % p.n_head;
        const int64_t query = result / p.n_head % p.n_query;
        const int64_t stream = result / p.n_head / p.n_query;
        float *out = p.out + stream * p.out_stream + query * p.out_query + head * p.out_stride;
        float top = 0.0F;
        float sum = 0.0F;
        merge(p, head, partials + stream * p.partial_floats(), shift, out, &top, &sum, query);
    }
}

void Attention::exact(const AttentionProblem &p, int ith, int nth) {
    if (p.is_prompt()) {
        prompt(p, ith, nth);
        return;
    }
    Scratch scratch(p);
    const int64_t of_stream = p.n_kv_head * p.chunks();
    const int64_t items = p.n_stream * of_stream;
    int64_t stream = -1;
    AttentionProblem one;
    // The KV heads of a position lie side by side: a chunk is read for all of them before the next one.
    const int64_t end = items * (ith + 1) / nth;
    int64_t heads = 0;
    for (int64_t item = items * ith / nth; item < end; item += heads) {
        if (item / of_stream != stream) {
            stream = item / of_stream;
            one = p.stream(stream);
            scratch.take_queries(one);
        }
        const int64_t at = item % of_stream;
        heads = std::min(end - item, p.n_kv_head - at % p.n_kv_head);
        attend_all(one, scratch, at % p.n_kv_head, heads, at / p.n_kv_head,
                   partials_.data + stream * p.partial_floats());
    }
    barrier_.barrier(nth);
    merge_all(p, partials_.data, nullptr, ith, nth);
}

void Attention::merge(const AttentionProblem &p, int64_t head, const float *partials, const float *shift, float *out,
                      float *top, float *sum, int64_t query) const {
    const int64_t stride = p.n_query * p.n_head * (2 + p.dim_v);
    const float *first = partials + p.row(head, query) * (2 + p.dim_v);
    const auto top_of = [&](int64_t chunk) {
        return shift == nullptr ? first[chunk * stride] : first[chunk * stride] + shift[chunk * p.n_head + head];
    };
    float most = kNone;
    if (p.sinks != nullptr) {
        most = p.sinks[head];
    }
    for (int64_t chunk = 0; chunk < p.chunks(); ++chunk) {
        most = top_of(chunk) > most ? top_of(chunk) : most;
    }
    float total = p.sinks != nullptr ? exp_defined(p.sinks[head] - most) : 0.0F;
    std::fill_n(out, p.dim_v, 0.0F);
    for (int64_t chunk = 0; chunk < p.chunks(); ++chunk) {
        const float *partial = first + chunk * stride;
        if (partial[0] == kNone && partial[1] == 0.0F) {
            continue;
        }
        const float factor = exp_defined(top_of(chunk) - most);
        total += factor * partial[1];
        for (int64_t d = 0; d < p.dim_v; ++d) {
            out[d] += factor * partial[2 + d];
        }
    }
    *top = most;
    *sum = total;
    const float inverse = total == 0.0F ? 0.0F : 1.0F / total;
    for (int64_t d = 0; d < p.dim_v; ++d) {
        out[d] *= inverse;
    }
}

} // namespace seeddelta
