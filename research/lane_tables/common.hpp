// What the programs here share: walks searched together, the equations of least squares, and the best of many starts.
#pragma once
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

using Floats = float __attribute__((vector_size(64)));
using Ints = int __attribute__((vector_size(64)));

constexpr int kWalks = 16; // searched together

struct Equations {
    std::vector<double> normal, right;

    explicit Equations(size_t n) : normal(n * n), right(n) {}
};

// Least squares, drawn a little towards the values that are: one number can go from A to B unseen.
inline void solve(Equations &e, std::vector<float> &c) {
    const auto n = static_cast<int>(c.size());
    double mean = 0;
    for (int i = 0; i < n; ++i) {
        mean += e.normal[i * n + i] / n;
    }
    for (int i = 0; i < n; ++i) {
        e.normal[i * n + i] += 1e-3 * mean;
        e.right[i] += 1e-3 * mean * c[i];
    }
    for (int i = 0; i < n; ++i) {
        for (int j = i + 1; j < n; ++j) {
            const double f = e.normal[j * n + i] / e.normal[i * n + i];
            for (int k = i; k < n && f != 0; ++k) {
                e.normal[j * n + k] -= f * e.normal[i * n + k];
            }
            e.right[j] -= f * e.right[i];
        }
    }
    for (int i = n - 1; i >= 0; --i) {
        for (int k = i + 1; k < n; ++k) {
            e.right[i] -= e.normal[i * n + k] * e.right[k];
        }
        e.right[i] /= e.normal[i * n + i];
        c[i] = static_cast<float>(e.right[i]);
    }
}

// The `most` of least error, best first.
template <class T>
void keep_best(std::vector<std::pair<double, T>> &found, size_t most) {
    std::sort(found.begin(), found.end(), [](auto &a, auto &b) { return a.first < b.first; });
    found.resize(std::min(found.size(), most));
}
