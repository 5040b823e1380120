// The file of `seeddelta sparsify` in JSON: what is kept of the inputs of each matrix.
#pragma once
#include <map>
#include <optional>
#include <string>

namespace seeddelta {

struct SkipFile {
    struct Skip {
        double keep = 1.0;
        std::optional<double> threshold;
    };
    std::string path;
    bool wina = true;                   // score
    std::map<std::string, Skip> inputs; // by matrix; of those that read one input the first has the entry

    // Throws std::invalid_argument, which names the path.
    static SkipFile parse(const std::string &path, const std::string &json);
    static SkipFile read(const std::string &path);
};

} // namespace seeddelta
