#include "gguf/descriptions.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "gguf/cursor.hpp"
#include "gguf/ggml_types.hpp"
#include "seeddelta/lane_code.hpp"

namespace seeddelta {

namespace {

constexpr int64_t kVersion = 1;
constexpr std::string_view kPrefix = "seeddelta.tensors.";
constexpr const char *kBroken = "; the file is corrupt, build it again";
constexpr const char *kNewer = "; install a newer seeddelta";
constexpr int64_t kMostColumns = int64_t{1} << 31;

std::string key_of(std::string_view name) {
    return std::string(kPrefix) + std::string(name);
}

struct Column {
    const char *name;
    ValueType type;
    bool required = false;
};

constexpr Column kColumns[] = {
    {"name", ValueType::text, true},
    {"n_out", ValueType::u32, true},
    {"n_in", ValueType::u32, true},
    {"experts", ValueType::u32},
    {"layout", ValueType::u8},
    {"source_type", ValueType::u32, true},
    {"base", ValueType::u8, true},
    {"scale", ValueType::f64},
    {"code", ValueType::u8},
    {"fine_code", ValueType::u8},
    {"fine_tiles", ValueType::u32},
    {"base_block", ValueType::u32},
    {"seed_per", ValueType::u8},
    {"rotation_block", ValueType::u32},
    {"column_scale", ValueType::flag},
    {"residual", ValueType::u8, true},
    {"resid_k", ValueType::u32},
    {"resid_block", ValueType::u32},
    {"resid_size", ValueType::u32},
    {"vals", ValueType::u8},
    {"trims_soft", ValueType::u64},
    {"trims_hard", ValueType::u64},
    {"row_scale", ValueType::u8, true},
    {"norm_w", ValueType::f32, true},
    {"norm_w_hat", ValueType::f32, true},
    {"norm_err", ValueType::f32, true},
    {"norm_w_w", ValueType::f32, true},
    {"norm_w_hat_w", ValueType::f32, true},
    {"norm_err_w", ValueType::f32, true},
    {"rel_out", ValueType::f32},
    {"unsafe", ValueType::flag},
};

// The arrays of a file, and the entries of one tensor after the other.
class Table {
public:
    explicit Table(const Header &header) : header_(header) {
        for (const std::string &key : header.keys()) {
            if (key.starts_with(kPrefix)) {
                add(key);
            }
        }
        if (arrays_.empty()) {
            return;
        }
        for (const Column &column : kColumns) {
            if (column.required && !arrays_.contains(column.name)) {
                header.fail("the key " + key_of(column.name) + " is missing" + kBroken);
            }
        }
        count_ = arrays_.at("name").count;
        for (const auto &[name, array] : arrays_) {
            if (array.count != count_) {
                header.fail(key_of(name) + " has " + std::to_string(array.count) + " entries for " +
                            std::to_string(count_) + " tensors" + kBroken);
            }
        }
        Cursor names(header.path(), arrays_.at("name").items);
        for (size_t i = 0; i < count_; ++i) {
            names_.emplace_back(names.text("the names of the tensors"));
        }
    }

    size_t count() const { return count_; }
    const std::string &name(size_t i) const { return names_[i]; }

    // A number that is not there is 0, rel_out NaN.
    double real(const char *name, size_t i) const {
        const auto found = arrays_.find(name);
        if (found == arrays_.end()) {
            return std::string_view(name) == "rel_out" ? std::numeric_limits<double>::quiet_NaN() : 0.0;
        }
        Cursor cursor = entry(found->second, i);
        return found->second.type == ValueType::f64 ? cursor.number<double>(name) : cursor.number<float>(name);
    }

    uint64_t whole(const char *name, size_t i) const {
        const auto found = arrays_.find(name);
        if (found == arrays_.end()) {
            return 0;
        }
        Cursor cursor = entry(found->second, i);
        switch (size_of(found->second.type)) {
        case 1:
            return cursor.number<uint8_t>(name);
        case 4:
            return cursor.number<uint32_t>(name);
        default:
            return cursor.number<uint64_t>(name);
        }
    }

    [[noreturn]] void fail(const char *name, size_t i, const std::string &what, const char *remedy = kBroken) const {
        header_.fail(key_of(name) + " of tensor '" + names_[i] + "' " + what + remedy);
    }

private:
    struct Entries {
        ValueType type;
        size_t count;
        std::span<const uint8_t> items;
    };

    void add(const std::string &key) {
        const std::string name = key.substr(kPrefix.size());
        const Column *column = nullptr;
        for (const Column &one : kColumns) {
            column = one.name == name ? &one : column;
        }
        if (column == nullptr) {
            header_.fail("the key " + key + " is not known" + kNewer);
        }
        const Value &value = *header_.value(key);
        Cursor cursor(header_.path(), value.bytes);
        if (value.type != ValueType::array || cursor.number<uint32_t>(key) != static_cast<uint32_t>(column->type)) {
            header_.fail("the key " + key + " is no array of the type that it should have" + kBroken);
        }
        const auto count = cursor.number<uint64_t>(key);
        cursor.need(count * size_of(column->type), key); // the file may have changed since
        arrays_.emplace(name, Entries{column->type, count, value.bytes.subspan(cursor.at())});
    }

    Cursor entry(const Entries &array, size_t i) const {
        const size_t size = size_of(array.type);
        return {header_.path(), array.items.subspan(i * size, size)};
    }

    const Header &header_;
    std::unordered_map<std::string, Entries> arrays_;
    std::vector<std::string> names_;
    size_t count_ = 0;
};

// The description of tensor `i`, and what it may not say.
class Row {
public:
    Row(const Table &table, size_t i) : table_(table), i_(i) {}

    TensorDescription read() {
        d_.name = table_.name(i_);
        d_.n_out = ranged("n_out", 1, kMostColumns);
        d_.n_in = ranged("n_in", 1, kMostColumns);
        d_.experts = ranged("experts", 0, 65536);
        d_.by_column = ranged("layout", 0, 1) == 1;
        if (ggml_type(static_cast<uint32_t>(table_.whole("source_type", i_))) == nullptr) {
            refuse("source_type", "has a number that is not known",
                   "; the file is corrupt, build it again, or its original model has a type of a newer ggml: install a "
                   "newer seeddelta");
        }
        read_base();
        read_residual();
        d_.half_row_scale = ranged("row_scale", 0, 1) == 1;
        read_error();
        d_.is_unsafe = table_.whole("unsafe", i_) != 0;
        return std::move(d_);
    }

private:
    [[noreturn]] void refuse(const char *name, const std::string &what, const char *remedy = kBroken) const {
        table_.fail(name, i_, what, remedy);
    }

    int64_t ranged(const char *name, int64_t least, int64_t most) const {
        const uint64_t value = table_.whole(name, i_);
        if (value < static_cast<uint64_t>(least) || value > static_cast<uint64_t>(most)) {
            refuse(name, "is " + std::to_string(value) + ", out of range");
        }
        return static_cast<int64_t>(value);
    }

    // A field that only some kinds have: what it says must be 0 for the others.
    int64_t only_if(bool has, const char *name, int64_t least, int64_t most) const {
        if (!has && table_.whole(name, i_) != 0) {
            refuse(name, "is not 0, which is all that its kind can have");
        }
        return has ? ranged(name, least, most) : 0;
    }

    void read_base() {
        const uint64_t base = table_.whole("base", i_);
        d_.base = static_cast<BaseKind>(base);
        const bool prng = d_.base == BaseKind::prng_block;
        const bool lanes = d_.base == BaseKind::lanes;
        if (!prng && !lanes && d_.base != BaseKind::fht_struct && d_.base != BaseKind::none) {
            refuse("base", "has the number " + std::to_string(base) + ", which is not known", kNewer);
        }
        d_.scale = table_.real("scale", i_);
        if (!std::isfinite(d_.scale) || (d_.base == BaseKind::none && d_.scale != 0.0)) {
            refuse("scale", "is out of range");
        }
        d_.code = static_cast<int>(only_if(lanes, "code", 0, 255));
        if (lanes && lane_code(static_cast<uint32_t>(d_.code)) == nullptr) {
            refuse("code", "is " + std::to_string(d_.code) + ", which is not known", kNewer);
        }
        const bool may_be_fine = lanes && !d_.by_column && d_.experts == 0;
        const int64_t tiles = (d_.n_out + kTileRows - 1) / kTileRows;
        d_.fine_tiles = may_be_fine ? ranged("fine_tiles", 0, tiles - 1) : only_if(false, "fine_tiles", 0, 0);
        d_.fine_code = static_cast<int>(only_if(d_.fine_tiles > 0, "fine_code", 0, 255));
        if (d_.fine_tiles > 0 && lane_code(static_cast<uint32_t>(d_.fine_code)) == nullptr) {
            refuse("fine_code", "is " + std::to_string(d_.fine_code) + ", which is not known", kNewer);
        }
        d_.base_block = only_if(prng, "base_block", 8, 64);
        if (prng && !std::has_single_bit(static_cast<uint64_t>(d_.base_block))) {
            refuse("base_block", "is " + std::to_string(d_.base_block) + ", out of range");
        }
        d_.seed_per = static_cast<SeedPer>(only_if(prng, "seed_per", 0, 2));
        d_.rotation_block = only_if(prng || lanes, "rotation_block", 0, kMostColumns / 2);
        d_.column_scale = only_if(lanes, "column_scale", 0, 255) != 0;
    }

    void read_residual() {
        const uint64_t residual = table_.whole("residual", i_);
        d_.residual = static_cast<ResidualScheme>(residual);
        const auto is = [&](ResidualScheme scheme) { return d_.residual == scheme; };
        const bool coo = is(ResidualScheme::coo);
        const bool blocks = is(ResidualScheme::block) || is(ResidualScheme::proc_sparse);
        const bool codebook = is(ResidualScheme::codebook_resid);
        if (!coo && !blocks && !codebook && !is(ResidualScheme::none)) {
            refuse("residual", "has the number " + std::to_string(residual) + ", which is not known", kNewer);
        }
        d_.resid_k = only_if(coo || blocks || codebook, "resid_k", 1, kMostColumns);
        d_.resid_block = only_if(blocks, "resid_block", 32, 64);
        if (blocks && d_.resid_block != 32 && d_.resid_block != 64) {
            refuse("resid_block", "is " + std::to_string(d_.resid_block) + ", not 32 or 64");
        }
        d_.resid_size = only_if(codebook, "resid_size", 1, 65536);
        d_.int8_values = only_if(coo || is(ResidualScheme::block), "vals", 0, 1) != 0;
        const bool proc = is(ResidualScheme::proc_sparse);
        constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
        d_.trims = static_cast<uint64_t>(only_if(proc, "trims_soft", 0, kMost)) +
                   static_cast<uint64_t>(only_if(proc, "trims_hard", 0, kMost));
    }

    // The relative error that the encoder made small: of the outputs where it was measured, else of the weights by
    // importance.
    void read_error() {
        for (const char *name : {"norm_w", "norm_w_hat", "norm_err", "norm_w_w", "norm_w_hat_w", "norm_err_w"}) {
            if (!std::isfinite(table_.real(name, i_))) {
                refuse(name, "is not finite");
            }
        }
        const double measured = table_.real("rel_out", i_);
        const double whole = table_.real("norm_w_w", i_);
        const double error = table_.real("norm_err_w", i_);
        d_.error = !std::isnan(measured) ? measured : whole > 0 ? error / whole : error > 0 ? 1.0 : 0.0;
    }

    const Table &table_;
    size_t i_;
    TensorDescription d_;
};

} // namespace

std::string TensorDescription::stem() const {
    constexpr std::string_view ending = ".weight";
    return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : name;
}

bool is_seeddelta(const Header &header) {
    return header.flag("seeddelta.enabled").value_or(false);
}

std::vector<TensorDescription> read_descriptions(const Header &header) {
    const auto version = header.whole("seeddelta.version");
    if (!version.has_value()) {
        header.fail("seeddelta.version is missing or no number; build the file again");
    }
    if (*version != kVersion) {
        header.fail("SeedΔ version " + std::to_string(*version) + "; this release reads version " +
                    std::to_string(kVersion) + "; install a newer seeddelta or build the file again");
    }
    const Table table(header);
    std::vector<TensorDescription> all;
    for (size_t i = 0; i < table.count(); ++i) {
        all.push_back(Row(table, i).read());
    }
    return all;
}

} // namespace seeddelta
