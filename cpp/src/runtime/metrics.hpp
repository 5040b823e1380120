// What models did, by name and as JSON.
#pragma once
#include <string>
#include <vector>

#include "runtime/served_model.hpp"

namespace seeddelta {

// `seeddelta.*`, `statecells.*`, `proc.*`, those of gates, and of attention that is ours. Null: an ordinary model.
std::vector<Metric> all_metrics(ServedModel *model, const Totals &totals);

// `"path": {…}`, or `"ordinary models": {…}`, with the names of `seeddelta run --metrics-json`.
std::string metrics_json(ServedModel *model, Totals totals);

// Throws ModelFileError. What was there before stays until all is written.
void write_file(const std::string &path, const std::string &text);

} // namespace seeddelta
