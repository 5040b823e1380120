// What models did, as JSON.
#pragma once
#include <string>
#include <vector>

#include "runtime/served_model.hpp"

namespace seeddelta {

// `"path": {…}` with the names of `seeddelta run --metrics-json`; totals are of all contexts.
std::string metrics_json(ServedModel &model, const Totals &totals);

// `"ordinary models": {…}`
std::string ordinary_json(const AttentionCounts &counts);

// Throws ModelFileError. What was there before stays until all is written.
void write_file(const std::string &path, const std::string &text);

} // namespace seeddelta
