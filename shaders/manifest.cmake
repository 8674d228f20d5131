# The shaders that the Vulkan backend is built of, each shaders/<name>.comp. Variants (types, dimensions)
# are specialization constants, chosen when a pipeline is made.
set(PLAIT_SHADERS
    attend
    attend_merge
    combine
    concat
    copy_rows
    delta_rule
    elementwise
    embed
    norm
    product_tiles
    product_vector
    rope
    rope_table
    rotate_rows
    route
    select_rows
    selective_scan
    short_conv
    slice
    ssd_scan
    store_rows
    token_shift
    wkv6
    wkv7
)
# Those that not every shader compiler takes: shaders/product_matrices_<dialect>.comp, with GL_<DIALECT>_cooperative_matrix.
set(PLAIT_MATRIX_DIALECTS khr nv)
