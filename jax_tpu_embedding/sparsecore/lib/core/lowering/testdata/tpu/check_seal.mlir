module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<5xf32>, %arg1: tensor<i32>, %arg2: tensor<256xf32>, %arg3: tensor<24xf32>) -> (tensor<i32> {jax.result_info = "result[0]"}, tensor<256xf32> {jax.result_info = "result[1]"}, tensor<24xf32> {jax.result_info = "result[2]"}) {
    %0 = stablehlo.slice %arg0 [0:1] : (tensor<5xf32>) -> tensor<1xf32>
    %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
    %2 = stablehlo.slice %arg0 [1:2] : (tensor<5xf32>) -> tensor<1xf32>
    %3 = stablehlo.reshape %2 : (tensor<1xf32>) -> tensor<f32>
    %4 = stablehlo.slice %arg0 [2:3] : (tensor<5xf32>) -> tensor<1xf32>
    %5 = stablehlo.reshape %4 : (tensor<1xf32>) -> tensor<f32>
    %6 = stablehlo.slice %arg0 [3:4] : (tensor<5xf32>) -> tensor<1xf32>
    %7 = stablehlo.reshape %6 : (tensor<1xf32>) -> tensor<f32>
    %8 = stablehlo.slice %arg0 [4:5] : (tensor<5xf32>) -> tensor<1xf32>
    %9 = stablehlo.reshape %8 : (tensor<1xf32>) -> tensor<f32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %10 = stablehlo.compare EQ, %1, %cst, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %11 = stablehlo.multiply %3, %3 : tensor<f32>
    %12 = stablehlo.compare EQ, %5, %11, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %13 = stablehlo.and %10, %12 : tensor<i1>
    %14 = stablehlo.multiply %7, %7 : tensor<f32>
    %15 = stablehlo.compare EQ, %9, %14, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %16 = stablehlo.and %13, %15 : tensor<i1>
    %cst_0 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %17 = call @_where(%16, %arg2, %cst_0) : (tensor<i1>, tensor<256xf32>, tensor<f32>) -> tensor<256xf32>
    %cst_1 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %18 = call @_where_0(%16, %arg3, %cst_1) : (tensor<i1>, tensor<24xf32>, tensor<f32>) -> tensor<24xf32>
    return %arg1, %17, %18 : tensor<i32>, tensor<256xf32>, tensor<24xf32>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<256xf32>, %arg2: tensor<f32>) -> tensor<256xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<256xf32>
    %2 = stablehlo.select %arg0, %arg1, %1 : tensor<i1>, tensor<256xf32>
    return %2 : tensor<256xf32>
  }
  func.func private @_where_0(%arg0: tensor<i1>, %arg1: tensor<24xf32>, %arg2: tensor<f32>) -> tensor<24xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<24xf32>
    %2 = stablehlo.select %arg0, %arg1, %1 : tensor<i1>, tensor<24xf32>
    return %2 : tensor<24xf32>
  }
}
