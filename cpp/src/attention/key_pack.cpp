#include "attention/key_pack.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace seeddelta {

static constexpr int64_t kCalibrationRows = 512; // of a cache, evenly spread, make the mean key
static constexpr float kMovingShare = 0.1F;      // of a new gamma in the moving mean

// Whether the mask has any number but 0 from `first` on.
static bool any_bit(const AttentionProblem &p, int64_t first, int64_t count) {
    uint32_t any = 0;
    for (int64_t i = first; i < first + count; ++i) {
        any |= p.mask_bits(i);
    }
    return any != 0;
}

void visible_bits(const AttentionProblem &p, int64_t chunk, uint64_t bits[2]) {
    const int64_t begin = chunk * kAttentionChunk;
    for (int64_t half = 0; half < 2; ++half) {
        const int64_t first = begin + 64 * half;
        const int64_t count = std::clamp<int64_t>(p.n_kv - first, 0, 64);
        uint64_t word = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
        if (p.masked() && any_bit(p, first, count)) {
            for (int64_t i = 0; i < count; ++i) {
                word &= ~(static_cast<uint64_t>(p.hidden(first + i)) << i);
            }
        }
        bits[half] = word;
    }
}

bool same_mask(const AttentionProblem &p, int64_t a, int64_t b, int64_t chunk) {
    const int64_t first = chunk * kAttentionChunk;
    const auto n = static_cast<size_t>(std::min(kAttentionChunk, p.n_kv - first));
    if (p.mask != nullptr) {
        const uint16_t *row = p.mask + first;
        return std::memcmp(row + a * p.mask_query, row + b * p.mask_query, n * sizeof(*row)) == 0;
    }
    const float *row = p.mask32 == nullptr ? nullptr : p.mask32 + first;
    return row == nullptr || std::memcmp(row + a * p.mask_query, row + b * p.mask_query, n * sizeof(*row)) == 0;
}

struct KeyPack::Row {
    uint8_t positive[kLargestHead / 8];
    uint8_t negative[kLargestHead / 8];
    float magnitude;
};

static size_t count_of(int64_t n) {
    return static_cast<size_t>(n);
}

KeyPack::KeyPack(int64_t n_kv_head, int64_t dim, int64_t capacity, PackMode mode, int64_t recent)
    : n_kv_head_(n_kv_head), dim_(dim), capacity_((capacity + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk),
      mode_(mode), valid_(count_of(capacity_ / 64)), recent_words_(count_of(capacity_ / 64)),
      ring_(count_of(std::max<int64_t>(recent, 1)), -1), positive_(count_of(n_kv_head * capacity_ * dim / 8)),
      negative_(mode == PackMode::ternary ? positive_.size() : 0), mean_(count_of(n_kv_head * dim)),
      scale_(mean_.size()), magnitude_(count_of(n_kv_head * capacity_)), gamma_(count_of(n_kv_head * capacity_)) {
    pending = capacity_;
}

int64_t KeyPack::nbytes() const {
    const size_t floats = mean_.size() + scale_.size() + magnitude_.size() + gamma_.size();
    return static_cast<int64_t>(positive_.size() + negative_.size() + floats * sizeof(float));
}

void KeyPack::written(int64_t row) {
    valid_[count_of(row / 64)] &= ~(uint64_t{1} << (row % 64));
    ++pending;
    int64_t &oldest = ring_[ring_next_];
    const int64_t gone = oldest;
    oldest = row;
    ring_next_ = (ring_next_ + 1) % ring_.size();
    if (gone >= 0 && std::find(ring_.begin(), ring_.end(), gone) == ring_.end()) {
        recent_words_[count_of(gone / 64)] &= ~(uint64_t{1} << (gone % 64));
    }
    recent_words_[count_of(row / 64)] |= uint64_t{1} << (row % 64);
}

void KeyPack::forget() {
    std::fill(valid_.begin(), valid_.end(), 0);
    std::fill(recent_words_.begin(), recent_words_.end(), 0);
    std::fill(ring_.begin(), ring_.end(), -1);
    calibrated = false;
    pending = capacity_;
}

void KeyPack::outgrow() {
    if (calibrated && calibration_rows < kCalibrationRows / 2 &&
        operations - calibrated_at > static_cast<uint64_t>(calibration_rows)) {
        std::fill(valid_.begin(), valid_.end(), 0);
        calibrated = false;
        pending = capacity_;
    }
}

const uint8_t *KeyPack::plane(int64_t kv_head, int64_t chunk, bool negative) const {
    return (negative ? negative_ : positive_).data() + (kv_head * capacity_ + chunk * kAttentionChunk) * (dim_ / 8);
}

uint8_t *KeyPack::byte_at(std::vector<uint8_t> &plane, int64_t kv_head, int64_t row) const {
    return plane.data() + (kv_head * capacity_ + row / kKeyBlock * kKeyBlock) * (dim_ / 8) + row % kKeyBlock;
}

// The mean key of a KV head, so that signs are as often + as -, and how far its channels are from it: some of them are
// many times as far as others, which one magnitude a key cannot say.
void KeyPack::calibrate(const AttentionProblem &p, int64_t kv_head) {
    float *mean = mean_.data() + kv_head * dim_;
    float *scale = scale_.data() + kv_head * dim_;
    const int64_t step = std::max<int64_t>(1, p.n_kv / kCalibrationRows);
    const auto average = [&](auto value, float *out) {
        double sum[kLargestHead] = {};
        int64_t rows = 0;
        for (int64_t row = 0; row < p.n_kv; row += step) {
            if (p.hidden(row)) {
                continue;
            }
            float key[kLargestHead];
            p.key(kv_head, row, key);
            for (int64_t d = 0; d < dim_; ++d) {
                sum[d] += value(key[d], d);
            }
            ++rows;
        }
        for (int64_t d = 0; d < dim_; ++d) {
            out[d] = rows > 0 ? static_cast<float>(sum[d] / static_cast<double>(rows)) : 0.0F;
        }
        return rows;
    };
    average([](float x, int64_t) { return x; }, mean);
    const int64_t rows = average([&](float x, int64_t d) { return std::fabs(x - mean[d]); }, scale);
    for (int64_t d = 0; d < dim_; ++d) {
        // With `ternary` large channels have the bits, and it finds more without. A single key has no scale.
        scale[d] = mode_ == PackMode::binary && scale[d] > 0.0F ? scale[d] : 1.0F;
    }
    if (kv_head == 0) {
        calibration_rows = rows;
        calibrated_at = operations;
    }
}

// Source of bits and gamma: the pseudo-code of the seed "Pack binario/ternario" (gamma = mean of what has a bit), of
// the centered key.
void KeyPack::describe(const AttentionProblem &p, const PackSettings &settings, int64_t kv_head, int64_t position,
                       Row &row) const {
    float centered[kLargestHead];
    p.key(kv_head, position, centered);
    const float *mean = mean_.data() + kv_head * dim_;
    const float *unit = scale(kv_head);
    float sum = 0.0F;
    for (int64_t d = 0; d < dim_; ++d) {
        centered[d] = (centered[d] - mean[d]) / unit[d];
        sum += std::fabs(centered[d]);
    }
    row.magnitude = sum / static_cast<float>(dim_);
    const float least = mode_ == PackMode::ternary ? settings.eps * row.magnitude : 0.0F;
    float active_sum = 0.0F;
    int active = 0;
    for (int64_t byte = 0; byte < dim_ / 8; ++byte) {
        int positive = 0;
        int negative = 0;
        for (int bit = 0; bit < 8; ++bit) {
            const float x = centered[8 * byte + bit];
            const bool large = std::fabs(x) > least;
            positive |= (large && x > 0.0F ? 1 : 0) << bit;
            negative |= (large && x < 0.0F ? 1 : 0) << bit;
            active_sum += large ? std::fabs(x) : 0.0F;
            active += large ? 1 : 0;
        }
        row.positive[byte] = static_cast<uint8_t>(positive);
        row.negative[byte] = static_cast<uint8_t>(negative);
    }
    if (mode_ == PackMode::ternary && active > 0) {
        row.magnitude = active_sum / static_cast<float>(active);
    }
}

// A thread owns whole chunks, and so whole words of valid_.
void KeyPack::pack(const AttentionProblem &p, const PackSettings &settings, int64_t chunk) {
    uint64_t visible[2];
    visible_bits(p, chunk, visible);
    for (int64_t half = 0; half < 2; ++half) {
        uint64_t &valid = valid_[count_of(2 * chunk + half)];
        for (uint64_t todo = visible[half] & ~valid; todo != 0; todo &= todo - 1) {
            const int64_t row = chunk * kAttentionChunk + 64 * half + std::countr_zero(todo);
            for (int64_t kv_head = 0; kv_head < n_kv_head_; ++kv_head) {
                if (settings.exact(kv_head)) {
                    continue;
                }
                Row bits;
                describe(p, settings, kv_head, row, bits);
                uint8_t *positive = byte_at(positive_, kv_head, row);
                for (int64_t b = 0; b < dim_ / 8; ++b) {
                    positive[b * kKeyBlock] = bits.positive[b];
                }
                if (mode_ == PackMode::ternary) {
                    uint8_t *negative = byte_at(negative_, kv_head, row);
                    for (int64_t b = 0; b < dim_ / 8; ++b) {
                        negative[b * kKeyBlock] = bits.negative[b];
                    }
                }
                magnitude_[count_of(kv_head * capacity_ + row)] = bits.magnitude;
            }
        }
        valid |= visible[half];
    }
}

// gamma of every packed position: the mean magnitude of its neighbors, at most gamma_cap times the moving mean.
void KeyPack::smooth(const PackSettings &settings, int64_t kv_head, int64_t n_kv) {
    const float *magnitude = magnitude_.data() + kv_head * capacity_;
    float *gamma = gamma_.data() + kv_head * capacity_;
    float moving = 0.0F;
    // Large keys are not the ones that matter: among signs alone, one gamma for all finds more of those.
    const int64_t of_mode = mode_ == PackMode::binary ? capacity_ : 1;
    const int64_t chunk = settings.gamma_chunk > 0 ? settings.gamma_chunk : of_mode;
    for (int64_t begin = 0; begin < n_kv; begin += chunk) {
        const int64_t end = std::min(begin + chunk, n_kv);
        float sum = 0.0F;
        int rows = 0;
        for (int64_t row = begin; row < end; ++row) {
            const bool packed = valid(row);
            sum += packed ? magnitude[row] : 0.0F;
            rows += packed ? 1 : 0;
        }
        if (rows == 0) {
            continue;
        }
        const float mean = sum / static_cast<float>(rows);
        moving = moving == 0.0F ? mean : moving + kMovingShare * (mean - moving);
        std::fill(gamma + begin, gamma + end, std::min(mean, settings.gamma_cap * moving));
    }
}

int64_t KeyPack::known_from(const AttentionProblem &p, int64_t row) const {
    const int64_t chunks = p.chunks();
    const int64_t first = row / kAttentionChunk;
    for (int64_t i = 0; i <= chunks; ++i) {
        const int64_t chunk = (first + i) % chunks;
        uint64_t known[2];
        visible_bits(p, chunk, known);
        for (int64_t half = 0; half < 2; ++half) {
            const int64_t begin = chunk * kAttentionChunk + 64 * half;
            uint64_t word = known[half] & valid_[count_of(2 * chunk + half)];
            if (i == 0 && begin < row) { // those before `row` come last
                word &= row - begin < 64 ? ~uint64_t{0} << (row - begin) : 0;
            }
            if (word != 0) {
                return begin + std::countr_zero(word);
            }
        }
    }
    return -1;
}

bool KeyPack::agrees(const AttentionProblem &p, const PackSettings &settings, int64_t kv_head, int64_t row) const {
    if (row < 0) {
        return true;
    }
    Row bits;
    describe(p, settings, kv_head, row, bits);
    const int64_t at = (kv_head * capacity_ + row / kKeyBlock * kKeyBlock) * (dim_ / 8) + row % kKeyBlock;
    bool same = bits.magnitude == magnitude_[count_of(kv_head * capacity_ + row)];
    for (int64_t b = 0; b < dim_ / 8; ++b) {
        same = same && positive_[count_of(at + b * kKeyBlock)] == bits.positive[b] &&
               (negative_.empty() || negative_[count_of(at + b * kKeyBlock)] == bits.negative[b]);
    }
    return same;
}

} // namespace seeddelta
