// Dense matrices as float16 columns.
#include <algorithm>
#include <cmath>
#include <new>

#include "format/float16.hpp"
#include "linear/columns_parts.hpp"
#include "seeddelta/make_weight.hpp"

namespace seeddelta {

namespace {

constexpr float kTernary = 0.7F;       // of the mean magnitude of a row
constexpr int64_t kColumns = 16;       // a cache line of float32: so many of each row are transposed at a time
constexpr uint16_t kInfinity = 0x7C00; // exponent of what is not finite

// float32 [rows, n_in] to `to`, in which `width` outputs are from one input to the next. False where one does not fit.
bool transpose(const float *from, int64_t rows, int64_t n_in, uint16_t *to, int64_t width) {
    bool finite = true;
    for (int64_t first = 0; first < n_in; first += kColumns) {
        const int64_t last = std::min(first + kColumns, n_in);
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t j = first; j < last; ++j) {
                const uint16_t half = float_to_half(from[row * n_in + j]);
                finite = finite && (half & kInfinity) != kInfinity;
                to[j * width + row] = half;
            }
        }
    }
    return finite;
}

} // namespace

void DenseColumns::Free::operator()(uint16_t *data) const {
    ::operator delete(data, std::align_val_t{64});
}

DenseColumns::DenseColumns(const std::string &name, int64_t n_out, int64_t n_in, const ReadRows &rows, bool signs) {
    constexpr int64_t kMost = int64_t{1} << 28; // their product fits 64 bits
    if (n_out <= 0 || n_in <= 0 || n_out >= kMost || n_in >= kMost) {
        throw std::invalid_argument("tensor '" + name + "': shape out of range");
    }
    weight_ = {.n_out = n_out, .n_in = n_in, .strips = dense_strips(n_out)};
    const auto bytes = static_cast<size_t>(n_out * n_in) * sizeof(uint16_t);
    f16_.reset(static_cast<uint16_t *>(::operator new(bytes, std::align_val_t{64})));
    weight_.f16 = f16_.get();
    if (signs) {
        sign_bits_.resize(static_cast<size_t>(2 * n_out * bitmap_words(n_in)));
        sign_gamma_.resize(static_cast<size_t>(n_out));
        weight_.sign_bits = sign_bits_.data();
        weight_.sign_gamma = sign_gamma_.data();
    }
    std::vector<float> values(static_cast<size_t>(std::min(n_out, kOutputSlice) * n_in));
    for (int i = 0; i < weight_.strips; ++i) {
        const Slice strip = slice_of(weight_, i, weight_.strips);
        for (int64_t first = strip.begin; first < strip.end; first += kOutputSlice) {
            const int64_t last = std::min(first + kOutputSlice, strip.end);
            rows(first, last, values.data());
            uint16_t *to = f16_.get() + strip.begin * n_in + (first - strip.begin);
            if (!transpose(values.data(), last - first, n_in, to, strip.end - strip.begin)) {
                throw std::invalid_argument("tensor '" + name + "' has weights beyond the range of float16");
            }
            for (int64_t row = first; signs && row < last; ++row) {
                add_signs(row, values.data() + (row - first) * n_in);
            }
        }
    }
}

void DenseColumns::add_signs(int64_t row, const float *values) {
    const int64_t n_in = weight_.n_in;
    const int64_t words = bitmap_words(n_in);
    double sum = 0.0, large = 0.0;
    for (int64_t j = 0; j < n_in; ++j) {
        sum += std::fabs(values[j]);
    }
    const float limit = kTernary * static_cast<float>(sum / static_cast<double>(n_in));
    int64_t count = 0;
    uint64_t *positive = sign_bits_.data() + 2 * row * words;
    uint64_t *negative = positive + words;
    for (int64_t j = 0; j < n_in; ++j) {
        if (std::fabs(values[j]) > limit) {
            (values[j] > 0 ? positive : negative)[j / 64] |= uint64_t{1} << (j % 64);
            large += std::fabs(values[j]);
            ++count;
        }
    }
    sign_gamma_[static_cast<size_t>(row)] =
        static_cast<float>(large / static_cast<double>(std::max<int64_t>(count, 1)));
}

} // namespace seeddelta
