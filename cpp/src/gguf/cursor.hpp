// Reads numbers and strings of a GGUF header and refuses to leave it.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "gguf/error.hpp"

namespace seeddelta {

static_assert(std::endian::native == std::endian::little, "GGUF files are read as they are");

class Cursor {
public:
    // Both are borrowed. `what` of the functions is what is read, for the message of an error.
    Cursor(const std::string &path, std::span<const uint8_t> data) : path_(path), data_(data) {}

    size_t at() const { return at_; }

    [[noreturn]] void fail(const std::string &what) const {
        throw ModelFileError(path_ + ": " + what + " (at byte " + std::to_string(at_) +
                             "); the file is corrupt or truncated, make it again");
    }

    void need(uint64_t count, std::string_view what) const {
        if (count > data_.size() - at_) {
            fail("the file ends inside " + std::string(what));
        }
    }

    void skip(uint64_t count, std::string_view what) {
        need(count, what);
        at_ += count;
    }

    template <class T>
    T number(std::string_view what) {
        need(sizeof(T), what);
        T value;
        std::memcpy(&value, data_.data() + at_, sizeof(T));
        at_ += sizeof(T);
        return value;
    }

    // Not checked to be UTF-8.
    std::string_view text(std::string_view what) {
        const auto length = number<uint64_t>(what);
        need(length, what);
        const std::string_view found(reinterpret_cast<const char *>(data_.data() + at_), length);
        at_ += length;
        return found;
    }

private:
    const std::string &path_;
    std::span<const uint8_t> data_;
    size_t at_ = 0;
};

} // namespace seeddelta
