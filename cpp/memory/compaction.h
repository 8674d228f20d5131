// Moving the rows of a table together, round by round.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/part.h"
#include "memory/row_table.h"

namespace plait {

// Runs of all sequences if each pool held sequence after sequence, key after key.
int64_t fewest_runs(const RowTable& table);

class Compaction {
public:
    // The moves of one round, at most `max_moves`, adjacent ones merged; none: the table is done.
    // Rows that are taken end up below all that are free. What is free is filled from the back,
    // which moves the fewest rows; where runs have become short all keys are put in order, for
    // which rows in the way step aside into free ones.
    std::vector<RowMove> plan(const RowTable& table, int64_t max_moves);

private:
    bool put_in_order_ = false;
    uint64_t version_ = UINT64_MAX;  // of the table when that was decided: it holds for all rounds
};

}  // namespace plait
