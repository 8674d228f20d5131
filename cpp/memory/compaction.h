// Defragmentation of a row table, in rounds.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/part.h"
#include "memory/row_table.h"

namespace plait {

// Returns the number of runs that the sequences would have if the rows of each pool were sorted by
// sequence and key.
int64_t min_runs(const RowTable& table);

class Compaction {
public:
    // Returns the moves of one round: at most `max_moves`, after merging adjacent moves. If there
    // are none, the table is done: the used rows of each pool precede the free ones.
    //
    // Usually rows from the end of a pool fill its free rows, which moves the fewest rows. If runs
    // are short, all rows are sorted by sequence and key instead; rows that occupy the target of
    // another are moved to free rows first.
    std::vector<RowMove> plan(const RowTable& table, int64_t max_moves);

private:
    bool sorts_ = false;             // sort rows instead of filling free rows
    uint64_t version_ = UINT64_MAX;  // table version for which sorts_ was chosen, for all rounds
};

}  // namespace plait
