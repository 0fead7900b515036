module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x16xf32>, %arg1: tensor<24x5xf32>) -> (tensor<32x16xf32> {jax.result_info = "result"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = call @_pad(%arg0, %c) : (tensor<8x16xf32>, tensor<i32>) -> tensor<8x16xf32>
    %1 = stablehlo.reshape %0 : (tensor<8x16xf32>) -> tensor<4x2x16xf32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %2 = call @_pad_0(%arg1, %c_0) : (tensor<24x5xf32>, tensor<i32>) -> tensor<24x16xf32>
    %3 = stablehlo.reshape %2 : (tensor<24x16xf32>) -> tensor<4x6x16xf32>
    %4 = stablehlo.concatenate %1, %3, dim = 1 : (tensor<4x2x16xf32>, tensor<4x6x16xf32>) -> tensor<4x8x16xf32>
    %5 = stablehlo.reshape %4 : (tensor<4x8x16xf32>) -> tensor<32x16xf32>
    return %5 : tensor<32x16xf32>
  }
  func.func private @_pad(%arg0: tensor<8x16xf32>, %arg1: tensor<i32>) -> tensor<8x16xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [0, 0], high = [0, 0], interior = [0, 0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }
  func.func private @_pad_0(%arg0: tensor<24x5xf32>, %arg1: tensor<i32>) -> tensor<24x16xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [0, 0], high = [0, 11], interior = [0, 0] : (tensor<24x5xf32>, tensor<f32>) -> tensor<24x16xf32>
    return %1 : tensor<24x16xf32>
  }
}
