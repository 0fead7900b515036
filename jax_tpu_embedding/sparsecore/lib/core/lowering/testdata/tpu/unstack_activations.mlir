module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32x16xf32>) -> (tensor<8x16xf32> {jax.result_info = "result[0]"}, tensor<24x5xf32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.reshape %arg0 : (tensor<32x16xf32>) -> tensor<4x8x16xf32>
    %1 = stablehlo.slice %0 [0:4, 0:2, 0:16] : (tensor<4x8x16xf32>) -> tensor<4x2x16xf32>
    %2 = stablehlo.reshape %1 : (tensor<4x2x16xf32>) -> tensor<8x16xf32>
    %3 = stablehlo.slice %0 [0:4, 2:8, 0:5] : (tensor<4x8x16xf32>) -> tensor<4x6x5xf32>
    %4 = stablehlo.reshape %3 : (tensor<4x6x5xf32>) -> tensor<24x5xf32>
    return %2, %4 : tensor<8x16xf32>, tensor<24x5xf32>
  }
}
