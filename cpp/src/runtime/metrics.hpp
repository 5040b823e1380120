// What models did, by name and as JSON.
#pragma once
#include <string>
#include <vector>

#include "runtime/served_model.hpp"

namespace seeddelta {

// `seeddelta.*`, `statecells.*`, `proc.*` and those of gates.
std::vector<Metric> model_metrics(ServedModel &model, const Totals &totals);

// `"path": {…}` with the names of `seeddelta run --metrics-json`; totals are of all contexts.
std::string metrics_json(ServedModel &model, const Totals &totals);

// `"ordinary models": {…}`
std::string ordinary_json(const AttentionCounts &counts);

// Throws ModelFileError. What was there before stays until all is written.
void write_file(const std::string &path, const std::string &text);

} // namespace seeddelta
