/** The views, in the order of their tabs. README.md beside this file says how one is added. */

import heads from "./heads.js";

export const VIEWS = [heads];
