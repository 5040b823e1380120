// The checked header of a GGUF model, of one file or of all parts of a split one: every number is compared with the
// size of the file before it is used, and tensor data is not looked at. Versions 2 and 3.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gguf/error.hpp"
#include "gguf/mapped_file.hpp"

namespace seeddelta {

// Value types of GGUF files.
enum class ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, flag, text, array, u64, i64, f64 };
inline constexpr uint32_t kValueTypes = 13;

// Bytes of a number of this type; 0 for text and array.
size_t size_of(ValueType type);

struct TensorInfo {
    std::string name;
    std::vector<int64_t> ne; // ggml's order: columns first
    uint32_t type = 0;
    size_t offset = 0; // in its file
    size_t bytes = 0;
    const MappedFile *file = nullptr;

    const uint8_t *data() const { return file->data().data() + offset; }
};

// A metadata value: its type, and the bytes behind the type's word, in the mapped file.
struct Value {
    ValueType type = ValueType::u8;
    std::span<const uint8_t> bytes;
};

// The number of this type, no text or array, that stands at the cursor; whole ones above 2^53 are rounded.
double read_number(class Cursor &cursor, ValueType type, std::string_view key);

class Header {
public:
    // Called with every file as soon as it is mapped, before it is read.
    using Mapped = std::function<void(const MappedFile &)>;
    // Throws ModelFileError.
    static Header read(const std::string &path, const Mapped &mapped = {});

    const std::string &path() const { return files_.front()->path(); }
    const std::vector<std::unique_ptr<MappedFile>> &files() const { return files_; }
    size_t alignment() const { return alignment_; }
    size_t data_offset() const { return data_offset_; } // in the first file

    const std::vector<TensorInfo> &tensors() const { return tensors_; } // in file order
    const TensorInfo *tensor(std::string_view name) const;

    const std::vector<std::string> &keys() const { return keys_; } // in file order
    const Value *value(std::string_view key) const;
    // A whole number of 32 bits at most, a flag, a text; none where there is no such key. Throws ModelFileError for
    // another type.
    std::optional<int64_t> whole(const std::string &key) const;
    std::optional<bool> flag(const std::string &key) const;
    std::optional<std::string> text(const std::string &key) const;
    // Drops all keys that begin so.
    void forget(std::string_view prefix);

    [[noreturn]] void fail(const std::string &what, Fault fault = Fault::format) const;

private:
    static Header read_one(const std::string &path, const Mapped &mapped);
    void parse();
    void read_values(class Cursor &cursor, uint64_t count);
    void read_tensors(class Cursor &cursor, uint64_t count);
    void place(TensorInfo &tensor) const;
    void check_overlap() const;
    void join(const Mapped &mapped);
    void append(Header &&part);

    std::vector<std::unique_ptr<MappedFile>> files_; // the addresses of the tensors' files
    std::vector<std::string> keys_;
    std::unordered_map<std::string, Value> values_;
    std::vector<TensorInfo> tensors_;
    std::unordered_map<std::string, size_t> tensor_at_;
    size_t alignment_ = 32;
    size_t data_offset_ = 0;
};

} // namespace seeddelta
