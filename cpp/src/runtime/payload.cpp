#include "runtime/payload.hpp"

#include <algorithm>

#include "format/column_lanes.hpp"
#include "gguf/cursor.hpp"
#include "gguf/ggml_types.hpp"
#include "seeddelta/lane_code.hpp"

namespace seeddelta {

namespace {

constexpr uint32_t kF32 = 0, kF16 = 1, kI8 = 24, kI16 = 25, kI32 = 26, kI64 = 27;
constexpr int64_t kMostShortColumns = 65536; // columns that 16 bits number

struct Part {
    const char *suffix;
    uint32_t type;
    std::vector<int64_t> shape; // rows first
    bool finite = false;        // float16 values that must be
};

class Layout {
public:
    explicit Layout(const TensorDescription &d) : d_(d), rows_(d.n_out * d.matrices()) {
        add("row_scale", d.half_row_scale ? kF16 : kF32, {d.by_column ? d.n_in : rows_});
        add_base();
        add_residual();
    }
    std::vector<Part> parts;

private:
    void add(const char *suffix, uint32_t type, std::vector<int64_t> shape, bool finite = false) {
        parts.push_back({suffix, type, std::move(shape), finite});
    }

    void add_base() {
        if (d_.base == BaseKind::lanes) {
            const LaneCode &code = *lane_code(static_cast<uint32_t>(d_.code));
            const int64_t tiles = (d_.n_out + kTileRows - 1) / kTileRows * d_.matrices();
            add("codes", kI8,
                d_.by_column ? std::vector<int64_t>{d_.n_in, column_streams(d_.n_out), column_lines(code)}
                             : std::vector<int64_t>{tiles - d_.fine_tiles, code.lines(d_.n_in), kLaneBytes});
            if (d_.fine_tiles > 0) {
                const LaneCode &fine = *lane_code(static_cast<uint32_t>(d_.fine_code));
                add("fine_codes", kI8, {d_.fine_tiles, fine.lines(d_.n_in), kLaneBytes});
                add("fine_map", kI8, {(tiles + 7) / 8});
            }
            if (d_.column_scale) {
                add("column_scale", kI8, {d_.n_in * d_.matrices()});
            }
        }
        const int64_t blocks = d_.base == BaseKind::prng_block ? (d_.n_in + d_.base_block - 1) / d_.base_block : 0;
        if (d_.seed_per == SeedPer::row) {
            add("seed_idx", kI16, {rows_});
        } else if (d_.seed_per == SeedPer::block) {
            add("seed_idx", kI16, {rows_, blocks});
            add("seed_gain", kI8, {rows_, blocks});
        }
    }

    void add_residual() {
        const int64_t k = d_.resid_k;
        const uint32_t values = d_.int8_values ? kI8 : kF16;
        switch (d_.residual) {
        case ResidualScheme::coo:
            add("d_idx", d_.n_in <= kMostShortColumns ? kI16 : kI32, {rows_, k});
            add("d_val", values, {rows_, k}, !d_.int8_values);
            if (d_.int8_values) {
                add("d_scale", kF16, {rows_}, true);
            }
            break;
        case ResidualScheme::block:
            add("b_map", kI16, {rows_, k});
            add("b_val", values, {rows_, k, d_.resid_block}, !d_.int8_values);
            if (d_.int8_values) {
                add("b_scale", kF16, {rows_, k}, true);
            }
            break;
        case ResidualScheme::codebook_resid:
            add("r_dict", kF16, {d_.resid_size, d_.n_in}, true);
            add("r_codes", kI16, {rows_, k});
            add("r_vals", kF16, {rows_, k}, true);
            break;
        case ResidualScheme::proc_sparse: {
            const int64_t bytes = (d_.n_in + 8 * d_.resid_block - 1) / (8 * d_.resid_block);
            add("p_map", kI8, {rows_, bytes});
            add("p_val", kI8, {rows_, k, d_.resid_block});
            add("p_scale", kF16, {rows_}, true);
            break;
        }
        case ResidualScheme::none:
            break;
        }
    }

    const TensorDescription &d_;
    int64_t rows_;
};

std::string text_of(const char *type, const std::vector<int64_t> &shape) {
    std::string text = type;
    for (size_t i = 0; i < shape.size(); ++i) {
        text += (i == 0 ? "[" : ", ") + std::to_string(shape[i]);
    }
    return text + "]";
}

const TensorInfo &find(const Header &header, const TensorDescription &d, const Part &part) {
    const std::string name = d.stem() + "." + part.suffix;
    const TensorInfo *info = header.tensor(name);
    if (info == nullptr) {
        header.fail("tensor '" + d.name + "' lacks its payload '" + name + "'; build the file again");
    }
    const std::vector<int64_t> shape(info->ne.rbegin(), info->ne.rend());
    if (info->type != part.type || shape != part.shape) {
        header.fail("payload '" + name + "' is " + text_of(ggml_type(info->type)->name, shape) +
                    ", but its description says " + text_of(ggml_type(part.type)->name, part.shape) +
                    "; build the file again");
    }
    return *info;
}

bool all_finite(const Array &array, size_t bytes) {
    const auto *values = array.as<uint16_t>();
    return std::all_of(values, values + bytes / 2, [](uint16_t half) { return (half & 0x7C00U) != 0x7C00U; });
}

// Equal neighbors are padding: the last column again, with the value 0.
bool ascend(const Array &index, const Array &value) {
    const int64_t k = index.shape[1];
    const auto column = [&](int64_t e) {
        return index.item_size == 2 ? uint32_t{index.as<uint16_t>()[e]} : index.as<uint32_t>()[e];
    };
    const auto is_zero = [&](int64_t e) {
        return value.item_size == 1 ? value.as<int8_t>()[e] == 0 : (value.as<uint16_t>()[e] & 0x7FFFU) == 0;
    };
    for (int64_t e = 1; e < index.shape[0] * k; ++e) {
        if (e % k != 0 && column(e) <= column(e - 1) && !(column(e) == column(e - 1) && is_zero(e))) {
            return false;
        }
    }
    return true;
}

} // namespace

Payload payload_of(const Header &header, const TensorDescription &d) {
    WeightArrays arrays{.n_out = d.n_out,
                        .n_in = d.n_in,
                        .n_experts = d.matrices(),
                        .by_column = d.by_column,
                        .base_kind = static_cast<uint32_t>(d.base),
                        .base_scale = static_cast<float>(d.scale),
                        .rotation_block = static_cast<int>(d.rotation_block),
                        .base_block = d.base_block > 0 ? static_cast<int>(d.base_block) : 64,
                        .lane_code = d.base == BaseKind::lanes ? d.code : -1,
                        .fine_code = d.fine_tiles > 0 ? d.fine_code : -1};
    const TensorInfo &seed = find(header, d, {"base_seed", kI64, {1}});
    arrays.base_seed = Cursor(header.path(), {seed.data(), seed.bytes}).number<uint64_t>(seed.name);
    std::vector<const TensorInfo *> stored{&seed};
    for (const Part &part : Layout(d).parts) {
        const TensorInfo &info = find(header, d, part);
        const GgmlType &type = *ggml_type(info.type);
        Array &array = arrays.*array_named(part.suffix);
        array = {.data = info.data(),
                 .kind = part.type == kF32 || part.type == kF16 ? 'f' : 'i',
                 .item_size = type.bytes,
                 .shape = part.shape};
        if (part.finite && !all_finite(array, info.bytes)) {
            header.fail("tensor '" + d.name + "': " + part.suffix +
                        " has NaN or infinite values; the file is corrupt, build it again");
        }
        stored.push_back(&info);
    }
    if (d.residual == ResidualScheme::coo && !ascend(arrays.d_idx, arrays.d_val)) {
        header.fail("tensor '" + d.name + "': d_idx does not ascend; the file is corrupt, build it again");
    }
    return {std::move(arrays), std::move(stored)};
}

bool is_payload_name(std::string_view name) {
    const std::string_view last = name.substr(name.rfind('.') + 1);
    return last == "base_seed" || array_named(last) != nullptr;
}

} // namespace seeddelta
