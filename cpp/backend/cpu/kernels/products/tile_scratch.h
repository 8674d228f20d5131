// Working memory of a product with AMX on one thread, and the sizes that it is made for.
#pragma once

#include <stdint.h>

namespace plait::cpu {

constexpr int64_t kTiledRows = 32;  // a product of fewer rows is as fast without tiles
constexpr int kTileHigh = 16;       // rows of a tile
constexpr int kStripColumns = 512;  // multiplied before the next ones are unpacked
constexpr int kPassRows = 256;      // for which a panel is unpacked once
constexpr int kPassPanels = 16;     // for which rows are laid out once

// A strip: kStripColumns of a pass. Units of 32 columns, steps of 32 or 16 that share a scale.
struct TileScratch {
    static constexpr int kTiles = kPassRows / kTileHigh, kUnits = kStripColumns / 32;
    static constexpr int kAhead = 3;  // units that are multiplied before they are needed

    // The rows, tile after tile.
    alignas(64) int8_t a[(kTiles * kUnits + kAhead) * kTileHigh * 32];  // [units][16][32]
    alignas(64) float a_scales[kTiles * kUnits * kTileHigh];            // [units][16]
    alignas(64) float a_sums[kTiles * kUnits * 2 * kTileHigh];          // [steps][16]
    // A panel.
    alignas(64) int8_t b[(kUnits + kAhead) * 32 * 16];  // [units][8][16 lanes][4]
    alignas(64) float scales[kUnits * 2 * 16];          // [steps][16 lanes]
    alignas(64) float lifts[kUnits * 2 * 16];
    alignas(64) float minima[kUnits * 2 * 16];
    alignas(64) int32_t sums[4 * kTileHigh * 16];  // of four steps
    alignas(64) unsigned char expanded[kStripColumns / 4 * 5 * 16];
    // Of every panel.
    alignas(64) float y[kPassPanels * kPassRows * 16];
};

}  // namespace plait::cpu
