// The attention of kernel_test: sums over keys and values, scores by bits, and what chooses keys by them.
#include <bit>
#include <limits>
#include <numeric>

#include "kernel_test.hpp"
#include "simd/kernel_table.hpp"

namespace kernel_test {

namespace {

void check_attend(Random &r) {
    AttentionTask task{};
    task.heads = r.between(1, 9);
    task.k_type = static_cast<CacheType>(r.between(0, 3));
    task.v_type = static_cast<CacheType>(r.between(0, 3));
    task.dim_k = has_blocks(task.k_type) ? kCacheBlock * r.between(1, 4) : kLanes * r.between(1, 8);
    task.dim_v = has_blocks(task.v_type) ? kCacheBlock * r.between(1, 4) : kLanes * r.between(1, 8);
    task.n = r.between(1, kAttentionChunk);
    const auto q = r.reals(task.heads * task.dim_k);
    const auto k = r.halves(300 * task.dim_k);
    const auto v = r.halves(300 * task.dim_v);
    const auto bias = r.reals(kAttentionChunk);
    const auto slope = r.reals(task.heads);
    std::vector<int32_t> rows;
    for (int64_t i = 0; i < task.n; ++i) {
        rows.push_back(static_cast<int32_t>(2 * i + r.between(0, 1)));
    }
    task.v_by_channel = task.v_type == CacheType::f16 && r.between(0, 1) == 0;
    task.positions = 300;
    if (task.v_by_channel) { // of one chunk, as attention has them
        std::vector<int32_t> chunk(static_cast<size_t>(kAttentionChunk));
        std::iota(chunk.begin(), chunk.end(), static_cast<int32_t>(kAttentionChunk));
        while (static_cast<int64_t>(chunk.size()) > task.n) {
            chunk.erase(chunk.begin() + r.between(0, static_cast<int64_t>(chunk.size()) - 1));
        }
        rows = chunk;
        task.positions = rows.back() + r.between(1, 40); // fewer than a block behind the last one
    }
    task.q = q.data();
    task.k = reinterpret_cast<const uint8_t *>(k.data());
    task.v = reinterpret_cast<const uint8_t *>(v.data());
    task.next_k = r.between(0, 1) == 0 ? nullptr : task.k;
    task.next_v = r.between(0, 1) == 0 ? nullptr : task.v;
    task.k_stride = cache_row_bytes(task.k_type, task.dim_k);
    task.v_stride = task.v_by_channel ? 2 * int64_t{300} : cache_row_bytes(task.v_type, task.dim_v);
    task.rows = rows.data();
    task.bias = r.between(0, 1) == 0 ? nullptr : bias.data();
    task.slope = slope.data();
    task.softcap = r.between(0, 2) == 0 ? 2.0F : 0.0F;
    task.negligible = r.between(0, 1) == 0 ? 0.0F : 0.3F;
    compare("attend", std::to_string(task.heads) + " heads, " + std::to_string(task.n) + " positions", [&] {
        Scratch scratch(attention_scratch_floats(task.heads, task.dim_k) * static_cast<int64_t>(sizeof(float)));
        std::vector<float> out(static_cast<size_t>(task.heads * (2 + task.dim_v)) + 1);
        task.scratch = scratch.as<float>();
        task.partial = out.data();
        kernels().attention.attend(task);
        out.back() = static_cast<float>(task.values);
        return out;
    });
}

// Two chunks of a prompt's tile: the second one goes on with what the first one left.
void check_prompt(Random &r) {
    const auto type_k = static_cast<CacheType>(r.between(0, 3));
    const auto type_v = static_cast<CacheType>(r.between(0, 3));
    const int64_t dim_k = has_blocks(type_k) ? kCacheBlock * r.between(1, 4) : kLanes * r.between(1, 8);
    const int64_t dim_v = has_blocks(type_v) ? kCacheBlock * r.between(1, 4) : kLanes * r.between(1, 8);
    const int64_t rows = kPromptRows * r.between(1, 3);
    const auto q = r.reals(rows * dim_k);
    const auto k = r.halves(2 * kAttentionChunk * dim_k);
    const auto v = r.halves(2 * kAttentionChunk * dim_v);
    const auto visible = r.words<uint64_t>(4);
    auto bias = r.reals(kAttentionChunk);
    for (float &one : bias) {
        one = r.between(0, 3) == 0 ? -std::numeric_limits<float>::infinity() : one;
    }
    std::vector<PromptRow> seen(static_cast<size_t>(rows));
    for (PromptRow &row : seen) {
        const auto from = static_cast<int32_t>(r.between(0, kAttentionChunk - 1));
        const auto to = static_cast<int32_t>(r.between(from, kAttentionChunk));
        row = {r.between(0, 1) == 0 ? nullptr : bias.data(), r.real(), from, to};
    }
    const float softcap = r.between(0, 2) == 0 ? 2.0F : 0.0F;
    const int64_t width = whole_panels(dim_v);
    compare("prompt", std::to_string(rows) + " rows, " + std::to_string(dim_v) + " channels", [&] {
        constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
        Scratch keys(kAttentionChunk * dim_k * kFloat);
        Scratch values(kAttentionChunk * width * kFloat);
        Scratch scores(kPromptRows * kAttentionChunk * kFloat);
        std::vector<float> out(static_cast<size_t>(rows * (width + 2)), 0.0F);
        float *top = out.data() + rows * width;
        std::fill_n(top, rows, -std::numeric_limits<float>::infinity());
        for (int64_t chunk = 0; chunk < 2; ++chunk) {
            const auto *first_k = reinterpret_cast<const uint8_t *>(k.data());
            const auto *first_v = reinterpret_cast<const uint8_t *>(v.data());
            const int64_t k_row = cache_row_bytes(type_k, dim_k);
            const int64_t v_row = cache_row_bytes(type_v, dim_v);
            kernels().attention.widen({type_k, type_v, first_k + chunk * kAttentionChunk * k_row,
                                       first_v + chunk * kAttentionChunk * v_row, k_row, v_row, dim_k, dim_v,
                                       visible.data() + 2 * chunk, keys.as<float>(), values.as<float>()});
            kernels().attention.prompt({q.data(), rows, dim_k, dim_v, keys.as<float>(), values.as<float>(), seen.data(),
                                        softcap, scores.as<float>(), top, top + rows, out.data()});
        }
        return out;
    });
}

void check_scores(Random &r) {
    const int64_t dim = kLanes * r.between(1, 16);
    const int64_t blocks = r.between(1, 5);
    const auto plane = r.words<uint8_t>(blocks * kKeyBlock * dim / 8);
    const auto plus = r.words<uint8_t>(dim / 8);
    const auto minus = r.words<uint8_t>(dim / 8);
    const auto before = r.words<int8_t>(blocks * kKeyBlock);
    const int add = static_cast<int>(r.between(-1, 1));
    for (const bool popcount : {false, true}) {
        std::vector<int8_t> table(static_cast<size_t>(dim * 4)); // with popcount that of the signs
        for (int64_t i = 0; i < dim * 4; ++i) {
            const auto bits = [&](const std::vector<uint8_t> &mask) {
                const int64_t four = i / 16;
                const int nibble = mask[static_cast<size_t>(four / 2)] >> (4 * (four % 2)) & 15;
                return std::popcount(static_cast<unsigned>(nibble & (i % 16)));
            };
            table[static_cast<size_t>(i)] =
                static_cast<int8_t>(popcount ? bits(plus) - bits(minus) : r.between(-124, 124));
        }
        compare(popcount ? "popcount" : "score", std::to_string(dim) + " channels", [&] {
            std::vector<int16_t> sums(before.begin(), before.end());
            const ScoreTask score{plane.data(), dim, blocks, table.data(), plus.data(), minus.data(), sums.data(), add};
            (popcount ? kernels().attention.popcount : kernels().attention.score)(score);
            return sums;
        });
    }
}

void check_choice(Random &r) {
    const int64_t n = 64 * r.between(1, 5);
    const int64_t heads = r.between(1, 5);
    const auto sums = r.words<int16_t>(n);
    const auto gamma = r.reals(n);
    const auto estimates = r.reals(heads * n, 3.0F);
    const auto top = r.reals(heads);
    const float limit = r.real();
    compare("estimates", std::to_string(n), [&] {
        const AttentionKernels &a = kernels().attention;
        std::vector<float> out(static_cast<size_t>(2 * n));
        const float most = a.estimate(sums.data(), gamma.data(), n, 0.01F, limit, out.data());
        a.nearness(estimates.data(), n, top.data(), heads, n, out.data() + n);
        std::vector<uint64_t> words(static_cast<size_t>(n / 64));
        a.above(estimates.data(), n, limit, words.data());
        out.push_back(most);
        out.push_back(static_cast<float>(a.count(estimates.data(), n, limit)));
        out.push_back(a.mass(estimates.data(), n, limit));
        for (const uint64_t word : words) {
            out.push_back(static_cast<float>(word >> 40));
            out.push_back(static_cast<float>(word >> 16 & 0xFFFFFF));
            out.push_back(static_cast<float>(word & 0xFFFF));
        }
        return out;
    });
}

} // namespace

void check_attention(Random &r) {
    check_attend(r);
    if (r.between(0, 3) == 0) { // its scalar definition takes its time
        check_prompt(r);
    }
    check_scores(r);
    check_choice(r);
}

} // namespace kernel_test
