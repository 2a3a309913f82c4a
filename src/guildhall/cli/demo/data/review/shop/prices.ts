import { Cents } from "@shop/money";

export class Prices {
  /** All that is in the basket. */
  total(prices: Cents[]): Cents {
    return prices.reduce((sum, price) => sum + price, 0);
  }
}
