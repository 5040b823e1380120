#include "gating/skip_file.hpp"

#include <cmath>
#include <fstream>
#include <locale>
#include <sstream>
#include <stdexcept>

namespace seeddelta {

namespace {

// Reads what the file may have: one object of numbers, texts and null, and in it objects of objects of numbers.
class Reader {
public:
    Reader(const std::string &path, const std::string &text) : path_(path), text_(text) {}

    [[noreturn]] void fail(const std::string &what) const {
        throw std::invalid_argument(path_ + ": " + what + "; make it with `seeddelta sparsify -o skip.json`");
    }
    template <class F>
    void object(F &&entry) { // entry(name) reads its value
        expect('{');
        if (next('}')) {
            return;
        }
        do {
            const std::string name = text();
            expect(':');
            entry(name);
        } while (next(','));
        expect('}');
    }
    std::string text() {
        expect('"');
        std::string found;
        for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
            at_ += text_[at_] == '\\' ? 1 : 0; // names of matrices have no signs that JSON writes otherwise
            found += at_ < text_.size() ? text_[at_] : ' ';
        }
        expect('"');
        return found;
    }
    // None for null.
    std::optional<double> number() {
        blanks();
        if (text_.compare(at_, 4, "null") == 0) {
            at_ += 4;
            return std::nullopt;
        }
        const size_t end = std::min(text_.find_first_not_of("+-.0123456789eE", at_), text_.size());
        std::istringstream in(text_.substr(at_, end - at_));
        in.imbue(std::locale::classic());
        double found = 0.0;
        if (!(in >> found) || !std::isfinite(found)) {
            fail("has no number where one should be");
        }
        at_ = end;
        return found;
    }
    void end() {
        blanks();
        if (at_ != text_.size()) {
            fail("goes on behind its end");
        }
    }

private:
    void blanks() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
    bool next(char c) {
        blanks();
        const bool found = at_ < text_.size() && text_[at_] == c;
        at_ += found ? 1 : 0;
        return found;
    }
    void expect(char c) {
        if (!next(c)) {
            fail("is no JSON of seeddelta sparsify");
        }
    }

    const std::string &path_, &text_;
    size_t at_ = 0;
};

SkipFile::Skip read_skip(Reader &reader, const std::string &matrix) {
    SkipFile::Skip skip{.keep = 0.0};
    reader.object([&](const std::string &key) {
        const std::optional<double> value = reader.number();
        if (key == "keep") {
            skip.keep = value.value_or(0.0);
        } else if (key == "threshold") {
            skip.threshold = value;
        } else {
            reader.fail("has '" + key + "', which is not known,");
        }
    });
    if (!(skip.keep > 0.0 && skip.keep <= 1.0) || skip.threshold.value_or(0.0) < 0.0) {
        reader.fail("has a keep or a threshold of '" + matrix + "' that is out of range");
    }
    return skip;
}

} // namespace

SkipFile SkipFile::parse(const std::string &path, const std::string &json) {
    Reader reader(path, json);
    SkipFile file{.path = path};
    bool scored = false;
    reader.object([&](const std::string &key) {
        if (key == "inputs") {
            reader.object([&](const std::string &matrix) { file.inputs[matrix] = read_skip(reader, matrix); });
        } else if (key == "score") {
            const std::string score = reader.text();
            file.wina = score == "wina";
            scored = file.wina || score == "magnitude";
        } else if (key == "format") {
            if (reader.number() != 1.0) {
                reader.fail("is of another format");
            }
        } else if (key == "tokens") {
            reader.number();
        } else if (key == "model" || key == "text") {
            reader.text();
        } else {
            reader.fail("has '" + key + "', which is not known,");
        }
    });
    reader.end();
    if (!scored) {
        reader.fail("has no score");
    }
    return file;
}

SkipFile SkipFile::read(const std::string &path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    if (!in || !(text << in.rdbuf())) {
        throw std::invalid_argument(path + ": cannot be read; make it with `seeddelta sparsify -o skip.json`");
    }
    return parse(path, text.str());
}

} // namespace seeddelta
