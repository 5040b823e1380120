#include "runtime/stub_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "gguf/error.hpp"
#include "runtime/hyperparameters.hpp"

namespace seeddelta {

namespace {

constexpr size_t kMark = 32; // bytes that a placeholder begins with: every float in them is NaN
constexpr char kNan = '\xFF';
constexpr size_t kLeastNan = size_t{1} << 16; // bytes that are NaN, at least
constexpr size_t kMostMappings = 1024;

size_t page_size() {
    static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return size;
}

size_t page_up(size_t at) {
    return (at + page_size() - 1) / page_size() * page_size();
}

std::string temporary_folder() {
    const char *given = std::getenv("TMPDIR");
    return given == nullptr || *given == '\0' ? "/tmp" : given;
}

// A file without a name: in memory, or on disk where that is not to be had.
int open_anonymous(const std::string &name) {
    int fd = memfd_create(name.substr(0, 200).c_str(), MFD_CLOEXEC);
    if (fd < 0) {
        std::string path = temporary_folder() + "/seeddelta-XXXXXX";
        fd = mkostemp(path.data(), O_CLOEXEC);
        if (fd >= 0) {
            unlink(path.c_str());
        }
    }
    return fd;
}

} // namespace

StubFile::File StubFile::make(const std::string &name) {
    File file;
    struct stat status = {};
    file.fd = open_anonymous(name);
    if (file.fd < 0 || fstat(file.fd, &status) != 0) {
        throw ModelFileError("a file in memory or in " + temporary_folder() + " cannot be made (" +
                                 std::strerror(errno) + "); free memory or point TMPDIR to a file system with space",
                             Fault::room);
    }
    file.device = status.st_dev;
    file.inode = status.st_ino;
    return file;
}

StubFile::StubFile(const Header &model, std::vector<StubTensor> tensors, const ChangedValues &changed)
    : origin_(model.path()) {
    const size_t slash = origin_.rfind('/');
    try {
        stub_ = make("seeddelta:" + origin_.substr(slash == std::string::npos ? 0 : slash + 1));
        nan_ = make("seeddelta:nan");
        path_ = "/proc/self/fd/" + std::to_string(stub_.fd);
        write(model, tensors, changed);
    } catch (...) {
        close();
        throw;
    }
}

void StubFile::write(const Header &model, std::vector<StubTensor> &tensors, const ChangedValues &changed) {
    check_hyperparameters(model);
    std::stable_partition(tensors.begin(), tensors.end(), [](const StubTensor &t) { return !t.is_placeholder(); });
    const std::string header = stub_header(model, tensors, changed);
    write_all(header.data(), header.size(), 0);
    end_ = header.size();
    begin_ = SIZE_MAX;
    const std::string mark(kMark, kNan);
    for (const StubTensor &tensor : tensors) {
        check_vector(tensor.source == nullptr ? model.path() : tensor.source->file->path(), tensor.name, tensor.ne,
                     tensor.type);
        if (tensor.source != nullptr) {
            copy(*tensor.source, tensor.offset);
        } else if (tensor.data != nullptr) {
            write_all(tensor.data, tensor.bytes, tensor.offset);
        } else {
            begin_ = std::min(begin_, tensor.offset);
            write_all(mark.data(), std::min(mark.size(), tensor.bytes), tensor.offset);
        }
        end_ = tensor.offset + tensor.bytes;
    }
    begin_ = std::min(begin_, end_);
    const size_t padded = (end_ + model.alignment() - 1) / model.alignment() * model.alignment();
    const std::string first(std::min(page_up(begin_), end_) - begin_, kNan); // these pages stay the file's
    const std::string last(end_ - std::max(begin_, end_ / page_size() * page_size()), kNan);
    write_all(first.data(), first.size(), begin_);
    write_all(last.data(), last.size(), end_ - last.size());
    nan_bytes_ = std::max(kLeastNan, page_up((end_ - begin_) / kMostMappings));
    const std::string nan(nan_bytes_, kNan);
    if (ftruncate(stub_.fd, static_cast<off_t>(padded)) != 0 ||
        pwrite(nan_.fd, nan.data(), nan.size(), 0) != static_cast<ssize_t>(nan.size())) {
        fail();
    }
}

void StubFile::close() noexcept {
    for (File *file : {&stub_, &nan_}) {
        if (file->fd >= 0) {
            ::close(file->fd);
            file->fd = -1;
        }
    }
}

void StubFile::fail() const {
    throw ModelFileError(origin_ + ": no room for the kept tensors in memory or in " + temporary_folder() + " (" +
                             std::strerror(errno) + "); free memory or point TMPDIR to a file system with space",
                         Fault::room);
}

void StubFile::write_all(const void *data, size_t count, size_t at) const {
    const auto *from = static_cast<const char *>(data);
    while (count > 0) {
        const ssize_t done = pwrite(stub_.fd, from, count, static_cast<off_t>(at));
        if (done <= 0) {
            fail();
        }
        from += done;
        at += static_cast<size_t>(done);
        count -= static_cast<size_t>(done);
    }
}

// Without touching the mapped file, so that its pages do not count as ours; but where the kernel does not copy.
void StubFile::copy(const TensorInfo &source, size_t at) const {
    auto from = static_cast<off_t>(source.offset);
    if (lseek(stub_.fd, static_cast<off_t>(at), SEEK_SET) < 0) {
        fail();
    }
    for (size_t left = source.bytes; left > 0;) {
        const ssize_t done = sendfile(stub_.fd, source.file->fd(), &from, std::min(left, size_t{1} << 30));
        if (done < 0) {
            const size_t copied = source.bytes - left;
            write_all(source.data() + copied, left, at + copied);
            return;
        }
        if (done == 0) {
            throw ModelFileError(source.file->path() + ": ended while it was read; load it again");
        }
        left -= static_cast<size_t>(done);
    }
}

bool StubFile::owns(const Mapping &mapping) const {
    return stub_.owns(mapping) || nan_.owns(mapping);
}

void StubFile::seal(const std::vector<Mapping> &mappings) {
    const size_t begin = page_up(begin_);
    const size_t end = std::max(begin, end_ / page_size() * page_size());
    for (const Mapping &mapping : mappings) {
        sealed_ = sealed_ || stub_.owns(mapping);
        const size_t first = std::max(begin, mapping.offset);
        const size_t last = std::min(end, mapping.offset + (mapping.end - mapping.begin));
        if (stub_.owns(mapping) && first < last) {
            map_nan(mapping.begin + (first - mapping.offset), mapping.begin + (last - mapping.offset));
        }
    }
    if (!sealed_ || begin == end) {
        return;
    }
    // where it is not supported they stay: only memory is lost
    static_cast<void>(fallocate(stub_.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                                static_cast<off_t>(end - begin)));
}

void StubFile::map_nan(uintptr_t begin, uintptr_t end) const {
    for (uintptr_t at = begin; at < end; at += nan_bytes_) {
        void *place = reinterpret_cast<void *>(at); // NOLINT(performance-no-int-to-ptr)
        if (mmap(place, std::min<size_t>(nan_bytes_, end - at), PROT_READ, MAP_SHARED | MAP_FIXED, nan_.fd, 0) !=
            place) {
            throw ModelFileError(origin_ + ": the placeholders cannot be mapped (" + std::strerror(errno) +
                                     "); free memory",
                                 Fault::memory);
        }
    }
}

std::vector<std::pair<uintptr_t, size_t>> StubFile::kept(const std::vector<Mapping> &mappings) const {
    std::vector<std::pair<uintptr_t, size_t>> found;
    const size_t end = begin_ < end_ ? begin_ : SIZE_MAX;
    for (const Mapping &mapping : mappings) {
        if (stub_.owns(mapping) && mapping.offset < end) {
            found.emplace_back(mapping.begin, std::min(mapping.end - mapping.begin, end - mapping.offset));
        }
    }
    return found;
}

bool StubFile::is_placeholder(const void *data, size_t bytes) {
    const auto *at = static_cast<const char *>(data);
    return std::all_of(at, at + std::min(bytes, kMark), [](char c) { return c == kNan; });
}

} // namespace seeddelta
